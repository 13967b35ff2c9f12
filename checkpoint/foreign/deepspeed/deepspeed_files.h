// SPDX-License-Identifier: Apache-2.0
//
// DeepSpeedFiles: the files of a checkpoint of DeepSpeed, by their names:
//
//   ROOT/latest                                              the name of the newest TAG
//   ROOT/latest_universal                                    the name of the newest universal TAG
//   TAG/mp_rank_00_model_states.pt                           ZeRO 0, 1, 2
//   TAG/zero_pp_rank_R_mp_rank_00_model_states.pt            ZeRO 3: one of each rank R
//   TAG/[bf16_|fp16_]zero_pp_rank_R_mp_rank_00_optim_states.pt   ZeRO 1, 2, 3: one of each rank
//   TAG/zero/NAME/{fp32,exp_avg,...}.pt, TAG/zero/optimizer_state.pt   universal, and then no *_optim_states.pt
//
// A universal TAG may have the model file under the names of both ZeRO 2 and 3, so that both find it.
//
// Names of tensor, pipeline and expert parallelism are refused: how such parts join is not in the files.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_FILES_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

inline constexpr char kDeepSpeedLatest[] = "latest";
inline constexpr char kDeepSpeedLatestUniversal[] = "latest_universal";
inline constexpr char kDeepSpeedModelFile[] = "mp_rank_00_model_states.pt";
inline constexpr char kDeepSpeedZero3ModelFile[] = "zero_pp_rank_0_mp_rank_00_model_states.pt";
inline constexpr char kDeepSpeedZero[] = "zero";
inline constexpr char kDeepSpeedOptimizerState[] = "optimizer_state.pt";

struct DeepSpeedFiles {
  std::string directory;  // TAG
  std::string note;       // how TAG was chosen, if that is not obvious
  bool is_universal = false;
  bool is_partitioned = false;     // the model files are of ranks: ZeRO 3
  std::vector<std::string> model;  // names, by rank; without gaps
  std::vector<std::string> optim;  // names, by rank; without gaps
};

// True for a directory that has files of such names: a TAG, or a ROOT with one. Errors of the disk.
absl::StatusOr<bool> IsDeepSpeedDirectory(const std::string& path);

// True for the name of a file by which a directory is known as a TAG: *_model_states.pt or *_optim_states.pt.
bool IsDeepSpeedFile(std::string_view name);

// True for a directory that only files of a checkpoint belong in: a TAG, and its zero/ and zero/NAME/. Errors of
// the disk.
absl::StatusOr<bool> IsInsideDeepSpeedTag(const std::string& directory);

// "global_step7_universal" for step 7, and true for such a name.
std::string UniversalTagName(int64_t step);
bool IsUniversalTagName(std::string_view name);

// The TAG that `path`, a TAG or a ROOT, means: of a ROOT the one that `latest` names, or, without it, that
// `latest_universal` names. kNotFound names the TAG that is not there. Sets `note` if another one is taken.
absl::StatusOr<std::string> DeepSpeedTag(const std::string& path, std::string* note);

// The files of a TAG. kInvalidArgument names a file of tensor, pipeline or expert parallelism; kNotFound the file of a
// rank that is missing between others.
absl::StatusOr<DeepSpeedFiles> ListDeepSpeedFiles(const std::string& tag);

// torch.save records the stem of the file's name in the archive (TorchArchive::folder). kDataLoss if `folder` of the
// file `name` is the stem of another of a checkpoint's files: this one was renamed, or exchanged with another rank's.
absl::Status CheckRecordedName(const std::string& name, const std::string& folder);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_FILES_H_
