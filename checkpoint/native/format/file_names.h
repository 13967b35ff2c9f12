// SPDX-License-Identifier: Apache-2.0
//
// The names of the files and directories of a checkpoint; they are part of the format (docs/checkpoint_format.md).
// Pure, except NewNonce.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_NAMES_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace fsdp {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kCheckpointFileName[] = "checkpoint.h5";

// "step-00000100": 8 digits, more if the step needs them.
std::string StepName(int64_t step);

// The step of a name that StepName makes; nothing for any other name.
std::optional<int64_t> ParseStepName(const std::string& name);

// Most rank files of a checkpoint, as their names have five digits; most parity files: one fewer than
// ParityCode::kMaxRuns.
inline constexpr int kMaxRankFiles = 99999;
inline constexpr int kMaxParityFiles = 254;

// "rank-00003-of-00008.h5": the file of writer 3 of 8.
std::string RankFileName(int writer, int writers);

// The writer and the number of writers of a name that RankFileName makes; nothing for any other name.
struct RankFile {
  int writer = 0;
  int writers = 0;
};
std::optional<RankFile> ParseRankFileName(const std::string& name);

// "parity-00000-of-00002.bin"
std::string ParityFileName(int index, int parity);

// The index and the number of parity files of a name that ParityFileName makes; nothing for any other name.
struct ParityFile {
  int index = 0;
  int parity = 0;
};
std::optional<ParityFile> ParseParityFileName(const std::string& name);

// ".step-00000100.tmp-<nonce>": `name` while it is written; ".step-00000100.deleted-<nonce>": while it is deleted.
std::string StagingName(const std::string& name, const std::string& nonce);
std::string DeletedName(const std::string& name, const std::string& nonce);

// The `name` of a name that StagingName or DeletedName makes; nothing for any other name.
std::optional<std::string> StagedNameOf(const std::string& name);
std::optional<std::string> DeletedNameOf(const std::string& name);

// "step-00000100.damaged" for `count` 1, "step-00000100.damaged-2" for 2, and so on: the new name of a step that did
// not verify and was in the way of a save (set_aside.h).
std::string SetAsideName(const std::string& name, int count);

// True for a name that SetAsideName makes from a step's name.
bool IsSetAsideName(const std::string& name);

// 16 random hexadecimal digits, from the system's entropy, so that processes on other hosts do not choose the same.
std::string NewNonce();

// True for a text that NewNonce may return.
bool IsNonce(const std::string& text);

// True for "rank-00003-of-00008.h5" and for the name of a linked one, "rank-00003-of-00008.step-00000100.h5".
bool IsRankFileName(const std::string& name);

// True for the names that a save gives to the files of a checkpoint: the manifest, checkpoint.h5, rank and parity
// files.
bool IsCheckpointFileName(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_FILE_NAMES_H_
