// SPDX-License-Identifier: Apache-2.0
//
// StateForm: the form in which a state dict has tensors, from a model's or an optimizer's config of any type.
#ifndef FSDP_FSDP_STATE_STATE_FORM_H_
#define FSDP_FSDP_STATE_STATE_FORM_H_

#include <cstdint>
#include <type_traits>
#include <variant>

#include "fsdp/fsdp/options/state_dict_config.h"

namespace fsdp {

// The union of the configs' fields.
struct StateForm {
  StateDictType type = StateDictType::kFull;
  bool offload_to_cpu = false;
  bool rank0_only = false;            // for kFull: other ranks get no tensors
  bool ignore_frozen_params = false;  // of a model's state

  // True if `rank` gets tensors.
  bool ReceivedBy(int rank) const { return !rank0_only || rank == 0; }
};

// The form that a config asks for; Config is StateDictConfig or OptimStateDictConfig.
template <typename Config>
StateForm FormOf(const Config& config) {
  StateForm form;
  form.type = static_cast<StateDictType>(config.index());
  form.offload_to_cpu = std::visit([](const auto& of_type) { return of_type.offload_to_cpu; }, config);
  if constexpr (std::is_same_v<Config, StateDictConfig>) {
    if (const auto* full = std::get_if<FullStateDictConfig>(&config)) form.rank0_only = full->rank0_only;
  } else {
    if (const auto* full = std::get_if<FullOptimStateDictConfig>(&config)) form.rank0_only = full->rank0_only;
  }
  return form;
}

// Which ranks have the elements of a state dict that is being loaded.
enum class StateSource : uint8_t {
  kFull,       // whole, on every rank
  kFullFirst,  // whole, only on rank 0
  kSharded,    // each rank's dim-0 chunk
  kLocal,      // each rank's slice of its flat shard
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_STATE_FORM_H_
