// SPDX-License-Identifier: Apache-2.0
//
// The configs that select and shape state dicts, by PyTorch's names and defaults. A config's C++ type determines the
// StateDictType, and a model's config can only be paired with an optimizer's config of the same type, so a wrong pair
// does not compile:
//
//   StateDictTypeGuard guard(*model, ShardedStateDictConfig{.offload_to_cpu = true});
//
// For types that come from flags or files, StateDictSettings::Make checks the pair at run time.
#ifndef FSDP_FSDP_OPTIONS_STATE_DICT_CONFIG_H_
#define FSDP_FSDP_OPTIONS_STATE_DICT_CONFIG_H_

#include <optional>
#include <variant>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Which part of a model a state dict has.
struct StateDictOptions {
  // Leaves out parameters whose requires_grad is off, for example the base of adapters. Buffers stay. Such a state dict
  // is loaded with LoadStateDictOptions::strict off, which then returns the names of these parameters as missing.
  bool ignore_frozen_params = false;
};

// Whole parameters, on every rank or only on rank 0.
struct FullStateDictConfig {
  bool offload_to_cpu = false;  // copies in host memory
  bool rank0_only = false;      // other ranks take part and get an empty state dict
};

// This rank's part of the flat parameters as it is in memory. Made without communication; the tensors alias the
// model's.
struct LocalStateDictConfig {
  bool offload_to_cpu = false;  // copies in host memory instead of the live ones
};

// Each parameter cut along dimension 0 into one chunk for each rank.
struct ShardedStateDictConfig {
  bool offload_to_cpu = false;
};

// The same three for optimizers, whose tensors PyTorch offloads by default.
struct FullOptimStateDictConfig {
  bool offload_to_cpu = true;
  bool rank0_only = false;
};

struct LocalOptimStateDictConfig {
  bool offload_to_cpu = false;
};

struct ShardedOptimStateDictConfig {
  bool offload_to_cpu = true;
};

// In the order of StateDictType: an alternative's index is the value of its type.
using StateDictConfig = std::variant<FullStateDictConfig, LocalStateDictConfig, ShardedStateDictConfig>;
using OptimStateDictConfig =
    std::variant<FullOptimStateDictConfig, LocalOptimStateDictConfig, ShardedOptimStateDictConfig>;

// A pair of configs of one type. Converts implicitly from a model's config, with the optimizer's defaults of that type.
class StateDictSettings {
 public:
  StateDictSettings() = default;  // FULL, as in PyTorch
  StateDictSettings(const FullStateDictConfig& model, const FullOptimStateDictConfig& optim = {})
      : model_(model), optim_(optim) {}
  StateDictSettings(const LocalStateDictConfig& model, const LocalOptimStateDictConfig& optim = {})
      : model_(model), optim_(optim) {}
  StateDictSettings(const ShardedStateDictConfig& model, const ShardedOptimStateDictConfig& optim = {})
      : model_(model), optim_(optim) {}
  StateDictSettings(const StateDictConfig& model) : StateDictSettings(For(model)) {}

  // `config` with the default optimizer config of its type.
  static StateDictSettings For(const StateDictConfig& config);

  // Settings of `type` from configs known at run time; absent ones have the type's defaults. kInvalidArgument for a
  // config of another type, naming both.
  static absl::StatusOr<StateDictSettings> Make(StateDictType type, const std::optional<StateDictConfig>& model = {},
                                                const std::optional<OptimStateDictConfig>& optim = {});

  StateDictType type() const { return static_cast<StateDictType>(model_.index()); }
  const StateDictConfig& state_dict_config() const { return model_; }
  const OptimStateDictConfig& optim_state_dict_config() const { return optim_; }

 private:
  StateDictConfig model_;
  OptimStateDictConfig optim_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_STATE_DICT_CONFIG_H_
