// SPDX-License-Identifier: Apache-2.0
//
// MergePlan: what a PEFT adapter does to each tensor of its base, from names, shapes and adapter_config.json only:
//
//   base_model.model.MODULE.lora_A.weight, .lora_B.weight    MODULE.weight += scale * B @ A          (low_rank.h)
//   base_model.model.MODULE.lora_embedding_A, _B             MODULE.weight += scale * (B @ A)^T
//   base_model.model.MODULE.lora_B.bias                      MODULE.bias += scale * it
//   base_model.model.MODULE.base_layer.NAME                  MODULE.NAME is it: a bias that was trained, an embedding
//   base_model.model.NAME                                    NAME is it: modules_to_save, or a new tensor of them
//
// scale is alpha / rank, or alpha / sqrt(rank) with use_rslora; rank_pattern and alpha_pattern come first. Everything
// that is stated twice is compared, and what would have to be guessed is an error. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_MERGE_PLAN_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_MERGE_PLAN_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/peft/low_rank.h"
#include "fsdp/checkpoint/source/adapter_config.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// In this order: the elements of `whole`, or else of the base, then what is added to them.
struct TensorChange {
  std::optional<StateKey> whole;  // in the adapter
  std::optional<LowRank> low_rank;
  std::optional<StateKey> added;  // in the adapter: `scale` times it
  double scale = 0;
};

struct MergePlan {
  std::map<StateKey, TensorChange> changes;  // by the base's key, or a new one
  std::vector<StateKey> new_keys;            // that the base does not have; all are `whole`
  std::vector<std::string> notes;
};

// kInvalidArgument with all reasons why an adapter of this config cannot be merged into any base.
absl::Status CheckCanMerge(const AdapterConfig& config);

// kInvalidArgument for an adapter that cannot be merged, with the reasons, or not into this base; kDataLoss for one
// whose parts do not fit together. Both name tensor or member.
absl::StatusOr<MergePlan> PlanMerge(const StateDict& base, const StateDict& adapter, const AdapterConfig& config);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_MERGE_PLAN_H_
