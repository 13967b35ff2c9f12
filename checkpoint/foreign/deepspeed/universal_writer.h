// SPDX-License-Identifier: Apache-2.0
//
// WriteUniversal: writes a checkpoint as a ROOT with a universal checkpoint of DeepSpeed, as its ds_to_universal makes
// one and an engine with `"checkpoint": {"load_universal": true}` loads it, with ZeRO 1, 2 or 3 and any number of
// ranks:
//
//   ROOT/latest_universal                                             global_step7_universal
//   ROOT/global_step7_universal/mp_rank_00_model_states.pt            universal_plan.h
//                              /zero_pp_rank_0_mp_rank_00_model_states.pt   the same file, where ZeRO 3 looks for it
//                              /zero/optimizer_state.pt
//                              /zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt
//
// Pulled block by block in bounded memory. Small files are written on several threads, since most of their time is that
// of their sync. Equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_WRITER_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// What DeepSpeed does with `contents`, for the report of a conversion. kInvalidArgument names a value that a universal
// checkpoint has no place for.
absl::StatusOr<std::vector<std::string>> CheckUniversal(const StateDict& contents);

struct UniversalRun {
  int64_t step = -1;  // -1: not known, written as 0
  int world_size = 1;
};

// Creates the directory `path` from `contents` (shards are ignored) and `read`. It appears whole, by rename of a hidden
// sibling, or not at all. Errors as CheckUniversal, and kInvalidArgument for parameters of one group with different
// numbers of steps, before anything is written.
absl::Status WriteUniversal(const std::string& path, const StateDict& contents, const UniversalRun& run,
                            const PayloadReader& read, const TorchWriteOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_WRITER_H_
