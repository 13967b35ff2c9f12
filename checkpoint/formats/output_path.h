// SPDX-License-Identifier: Apache-2.0
//
// CheckOutput: whether a program may write to a path. Whatever makes files asks it before the first byte, for each path
// that a user gave, whether or not it may replace what has the name: a tool must never harm what it reads, nor a
// checkpoint that has nothing to do with it.
//
//   InputPaths inputs;
//   AddCheckpoint(source, inputs);       // what OpenTensorSource(source) reads
//   inputs.Add(options.tokens);          // any other file or directory
//   FSDP_RETURN_IF_ERROR(CheckOutput(destination, inputs, {.kind = OutputKind::kFile}));
#ifndef FSDP_CHECKPOINT_FORMATS_OUTPUT_PATH_H_
#define FSDP_CHECKPOINT_FORMATS_OUTPUT_PATH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/input_paths.h"

namespace fsdp {

// Adds what OpenTensorSource(path) may read: for a ROOT each of its steps, but not the files beside them; else what
// InputPaths::Add adds.
void AddCheckpoint(const std::string& path, InputPaths& inputs);

enum class OutputKind : uint8_t {
  kFile,        // a file
  kDirectory,   // a directory, made as a whole, which may replace one that has the name
  kCheckpoint,  // as kDirectory, a checkpoint of ours: it alone may have the name of a step in a ROOT
  kRoot,        // a directory that checkpoints are added to, and whose contents stay
};

struct OutputOptions {
  OutputKind kind = OutputKind::kFile;

  // A directory that the caller itself makes a checkpoint of, in another format than ours, such as an export: outputs
  // may lie in it. Empty: none.
  std::string own_directory = {};

  // Outputs such as a log, which may lie beside the files of a model: a directory of another format than ours then
  // keeps only the names by which that format reads files (FormatDriver::ReadsFileName).
  bool may_lie_beside_models = false;
};

// kFailedPrecondition, with both paths and what to do, when `output`
//
//   - is, by device and inode, a file or directory that is read, whatever links and spellings lead to it, or has it as
//     the hidden file that StagedPath writes first;
//   - lies, at any depth, in a directory that is read;
//   - is a directory that would be replaced with something that is read in it;
//   - lies, at any depth, in a checkpoint of ours, or in what a save or a deletion is at work on or has left;
//   - lies directly in a checkpoint directory of another format (FormatDriver::IsCheckpointDirectory) that is no ROOT
//     with steps of ours (but see OutputOptions);
//   - has the name of a step beside steps of ours, and is no checkpoint of ours.
//
// A link is followed, and may itself lie in none of these places either. Nothing needs to exist at `output`: then the
// directories above it decide. Changes nothing.
absl::Status CheckOutput(const std::string& output, const InputPaths& inputs, const OutputOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_OUTPUT_PATH_H_
