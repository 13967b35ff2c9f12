// SPDX-License-Identifier: Apache-2.0
//
// UnitSettings: how one unit is sharded and computed, after FSDP1's options and overrides, or FSDP2's policies, and
// their rules of precedence have been applied. Units, runtime and state read these settings and never the options.
// unit_options.h has a picture of all steps.
#ifndef FSDP_FSDP_UNITS_UNIT_SETTINGS_H_
#define FSDP_FSDP_UNITS_UNIT_SETTINGS_H_

#include <optional>
#include <vector>

#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/fsdp/units/rank_agreement.h"
#include "fsdp/fsdp/units/shard_layout.h"
#include "fsdp/fsdp/units/shard_placement.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// By which API's rules gradients are averaged and accumulated.
enum class GradientRules : uint8_t {
  kFsdp1,  // divide before and after a sum; accumulate without synchronisation in the compute dtype
  kFsdp2,  // averages if the collective can; accumulate without synchronisation in the reduce dtype
};

struct UnitSettings {
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  LayoutKind layout = LayoutKind::kFlat;
  ShardPlacementFn shard_placement_fn = {};  // of LayoutKind::kDim0

  // One of several roots below a plain module: as the root of a model, it is kept from forward to backward.
  bool is_root = false;

  // As the fields of UnitOverrides of these names.
  std::optional<UnitProcessGroup> process_group = {};
  std::optional<BackwardPrefetch> backward_prefetch = {};
  std::optional<bool> forward_prefetch = {};
  ParamInitFn param_init_fn = {};

  GradientRules gradient_rules = GradientRules::kFsdp1;

  // Precision. An empty dtype is the original one, an empty reduce_dtype the param_dtype.
  std::optional<DType> param_dtype = {};
  std::optional<DType> reduce_dtype = {};
  std::optional<DType> buffer_dtype = {};
  ParamDTypeOverrideFn param_dtype_override_fn = {};

  // Floating-point outputs are cast to it; empty: they are not cast.
  std::optional<DType> output_dtype = {};

  // Floating-point inputs are cast to the compute dtype. With the second flag, outputs get the dtype that the input had
  // before that cast.
  bool cast_inputs = false;
  bool restore_output_dtype = false;

  // As the fields of MixedPrecision and FsdpOptions of these names.
  bool keep_low_precision_grads = false;
  bool full_precision_in_eval = false;
  std::optional<bool> optimizer_casts = {};

  // Set: shards are in host memory.
  OffloadPolicy offload = {};

  // Keep only the module's input for backward, which runs its forward again.
  bool activation_checkpointing = false;

  // FSDP2's reshard_after_forward of an int: after forward, keep 1/n of the parameters on each of n consecutive ranks.
  // 0: none.
  int post_forward_group_size = 0;
};

// The settings of all units of a model, and other facts that must be equal on its ranks.
struct ModelSettings {
  std::vector<UnitSettings> units;      // by unit
  std::vector<UnitSettings> bare = {};  // by module of Partition::bare
  RankAgreement agreement = {};
};

// FSDP1's settings: the model's options with the unit's overrides.
UnitSettings UnitSettingsOf(const FsdpOptions& options, const UnitOverrides& overrides, bool is_root);

// Sets the fields that FSDP2's policy decides: dtypes, casts and gradient rules.
void ApplyPolicy(const MixedPrecisionPolicy& policy, UnitSettings& settings);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_SETTINGS_H_
