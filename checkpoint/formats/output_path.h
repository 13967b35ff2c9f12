// SPDX-License-Identifier: Apache-2.0
//
// CheckOutput: whether a program may write to a path. Every program that creates files calls it before the first byte,
// for each path that a user gave, whether or not it may replace an existing entry: a tool must never harm its own
// inputs, nor an unrelated checkpoint.
//
//   InputPaths inputs;
//   AddCheckpoint(source, inputs);       // the files that OpenTensorSource(source) reads, as far as its path tells
//   inputs.Add(options.tokens);          // any other file or directory
//   FSDP_RETURN_IF_ERROR(CheckOutput(destination, inputs, {.kind = OutputKind::kFile}));
#ifndef FSDP_CHECKPOINT_FORMATS_OUTPUT_PATH_H_
#define FSDP_CHECKPOINT_FORMATS_OUTPUT_PATH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/input_paths.h"

namespace fsdp {

// Adds the files that OpenTensorSource(path) may read: each step of a ROOT, but not the other files in it; for any
// other path as InputPaths::Add.
void AddCheckpoint(const std::string& path, InputPaths& inputs);

// Adds the files of an open source: also those that its path does not name, such as the other parts of a model that was
// opened by one of them. Outputs must be checked again with them.
void AddSource(const TensorSource& source, InputPaths& inputs);

enum class OutputKind : uint8_t {
  kFile,        // a file
  kDirectory,   // a directory, made as a whole, which may replace an existing one
  kCheckpoint,  // as kDirectory, a checkpoint of ours: only this kind may have the name of a step in a ROOT
  kRoot,        // a directory that checkpoints are added to, and whose contents stay
};

struct OutputOptions {
  OutputKind kind = OutputKind::kFile;

  // A directory that the caller itself turns into a checkpoint of another format than ours, such as an export: outputs
  // may be inside it. Empty: no such directory.
  std::string own_directory = {};

  // A directory to which the caller adds steps: a ROOT before its first step too. Empty: no such directory.
  std::string root = {};

  // For outputs such as a log, which may be in the same directory as the files of a model: only the names by which that
  // format reads files are then refused (FormatDriver::ReadsFileName). Never applies to checkpoints of ours.
  bool may_lie_beside_models = false;
};

// kFailedPrecondition, with both paths and what to do, when `output`
//
//   - is, by device and inode, a file or directory that is read, whatever links and spellings lead to it, or has it as
//     the hidden file that StagedPath writes first;
//   - is inside a directory that is read, at any depth;
//   - is a directory that would be replaced although it contains an input;
//   - is inside a checkpoint of ours, at any depth, or inside a hidden directory of a save or a deletion, running or
//     crashed;
//   - is directly inside a checkpoint directory of another format (FormatDriver::IsCheckpointDirectory) that is not a
//     ROOT with steps of ours (but see OutputOptions);
//   - has the name of a step in a ROOT, and is not a checkpoint of ours;
//   - has in a ROOT the name by which another format knows its directory, such as model.safetensors, would replace a
//     ROOT, or is a ROOT to be in another format's checkpoint: readers of the ROOT would not see its steps;
//   - leads to a FIFO, a device or a socket, which may have no reader, and which is not replaced; or is a URL;
//   - is in or at a directory that cannot be read, so that none of this is known.
//
// A ROOT is a directory with steps of ours, or OutputOptions::root. A link is followed, and must itself satisfy the
// same rules. Nothing needs to exist at `output`: the directories above it then decide. Changes nothing.
absl::Status CheckOutput(const std::string& output, const InputPaths& inputs, const OutputOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_OUTPUT_PATH_H_
