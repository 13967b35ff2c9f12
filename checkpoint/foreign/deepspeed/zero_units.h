// SPDX-License-Identifier: Apache-2.0
//
// ZeroUnits: where the units of DeepSpeed's optimizer files are in a FlatSpace, from the file of rank 0. A unit is what
// one flat tensor of a rank holds: a group of ZeRO 1 and 2, a sub-group of ZeRO 3.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_ZERO_UNITS_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_ZERO_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/model_states.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

struct ZeroUnits {
  static constexpr int64_t kMaxTotal = int64_t{1} << 58;  // elements of all units together

  std::vector<int64_t> begin;
  std::vector<int64_t> part;                    // elements of each rank
  std::vector<int64_t> numel;                   // without the padding at its end
  std::vector<std::vector<int64_t>> alignment;  // elements after each parameter, by unit; empty: 0
  int64_t end = 0;                              // of the last unit

  // `parts`: the elements of each unit in the file of rank 0, whose optimizer is `zero`. kDataLoss if they do not fit
  // the shapes of `model`.
  static absl::StatusOr<ZeroUnits> Place(const DeepSpeedFiles& files, const ModelStates& model,
                                         std::vector<int64_t> parts, const TorchNode& zero);

  // The elements between parameter `i` of `unit` and the next one, in ZeRO 1 and 2.
  int64_t PaddingAfter(size_t unit, size_t i) const { return alignment.empty() ? 0 : alignment[unit][i]; }
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_ZERO_UNITS_H_
