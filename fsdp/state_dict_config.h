// SPDX-License-Identifier: Apache-2.0
//
// The configs that select and shape state dicts, by PyTorch's names and defaults. They live in a variant whose
// alternative is the StateDictType, so a config of the wrong type cannot be written.
#ifndef FSDP_FSDP_STATE_DICT_CONFIG_H_
#define FSDP_FSDP_STATE_DICT_CONFIG_H_

#include <variant>

#include "tensor/state_dict.h"

namespace fsdp {

// Whole parameters on every rank, or on rank 0 alone.
struct FullStateDictConfig {
  bool offload_to_cpu = false;  // tensors in host memory
  bool rank0_only = false;      // other ranks take part and get an empty state dict
};

// Each parameter cut along dimension 0, one chunk a rank.
struct ShardedStateDictConfig {
  bool offload_to_cpu = false;
};

using StateDictConfig = std::variant<FullStateDictConfig, ShardedStateDictConfig>;

struct FullOptimStateDictConfig {
  bool offload_to_cpu = true;
  bool rank0_only = false;
};

struct ShardedOptimStateDictConfig {
  bool offload_to_cpu = true;
};

using OptimStateDictConfig = std::variant<FullOptimStateDictConfig, ShardedOptimStateDictConfig>;

struct StateDictSettings {
  StateDictConfig state_dict_config;
  OptimStateDictConfig optim_state_dict_config;

  // The type that the model config belongs to.
  StateDictType type() const {
    return std::holds_alternative<FullStateDictConfig>(state_dict_config) ? StateDictType::kFull
                                                                          : StateDictType::kSharded;
  }

  // `config` with the default optimizer config of its type.
  static StateDictSettings For(const StateDictConfig& config) {
    if (std::holds_alternative<FullStateDictConfig>(config)) return {config, FullOptimStateDictConfig{}};
    return {config, ShardedOptimStateDictConfig{}};
  }
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_DICT_CONFIG_H_
