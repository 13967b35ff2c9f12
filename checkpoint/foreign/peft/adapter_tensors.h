// SPDX-License-Identifier: Apache-2.0
//
// AdapterTensors: the tensors of a PEFT adapter, sorted by the module that they change and by what their names say that
// they are. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_ADAPTER_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_ADAPTER_TENSORS_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Longer names are refused: no model has them, and names are compared with the patterns of a config.
inline constexpr size_t kMaxAdapterNameBytes = 4096;

// LoRA's tensors of one module.
struct LoraModule {
  StateKey a, b;
  bool is_embedding = false;
  std::optional<StateKey> bias;  // of lora_B
};

struct AdapterTensors {
  std::map<std::string, LoraModule> modules;  // by the module's name in the base
  std::map<std::string, StateKey> whole;      // by the tensor's name in the base
};

// kInvalidArgument for a tensor that is not one of PEFT's, or that cannot be merged (DoRA's magnitudes, ...);
// kDataLoss for a factor without the other one.
absl::StatusOr<AdapterTensors> SortAdapter(const StateDict& adapter);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_ADAPTER_TENSORS_H_
