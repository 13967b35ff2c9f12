// SPDX-License-Identifier: Apache-2.0
//
// The files of a universal checkpoint as archives of torch.save, laid out but not written: see universal_plan.h. Equal
// input gives equal bytes. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_ENCODING_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_ENCODING_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/universal_plan.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// OK if every extra value of `contents` has a place. kInvalidArgument names one that would take the place of an entry
// of DeepSpeed.
absl::Status CheckExtrasOfUniversal(const StateDict& contents);

// The model file: names, shapes, the tensors that were not trained, counters, and the program's entries, which are all
// extra values except the optimizer's. `step`: -1: not known. Errors of PartsOfExtras.
absl::StatusOr<TorchArchivePlan> EncodeUniversalModel(const UniversalPlan& plan, const StateDict& contents,
                                                      int64_t step, int world_size);

// optimizer_state.pt. `step`: the number of steps that ZeRO 3 reads here.
absl::StatusOr<TorchArchivePlan> EncodeUniversalOptimizer(const UniversalPlan& plan, const StateDict& contents,
                                                          const std::optional<LiteralTensor>& step);

// fp32.pt, exp_avg.pt, ...: {"cat_dim": 0, "param": tensor}. The entry must outlive the plan.
TorchArchivePlan EncodeUniversalTensor(const StateDict::Entry& entry);

// step.pt: the tensor itself.
TorchArchivePlan EncodeUniversalStep(const LiteralTensor& step);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_UNIVERSAL_ENCODING_H_
