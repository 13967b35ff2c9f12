// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/unit_settings.h"

namespace fsdp {

UnitSettings UnitSettingsOf(const FsdpOptions& options, const UnitOverrides& overrides, bool is_root) {
  const MixedPrecision precision = overrides.mixed_precision.value_or(options.mixed_precision);
  UnitSettings settings;
  settings.sharding_strategy = overrides.sharding_strategy.value_or(options.sharding_strategy);
  settings.layout = options.use_orig_params ? LayoutKind::kFlatAligned : LayoutKind::kFlat;
  settings.is_root = is_root;
  settings.process_group = overrides.process_group;
  settings.backward_prefetch = overrides.backward_prefetch;
  settings.forward_prefetch = overrides.forward_prefetch;
  settings.param_init_fn = overrides.param_init_fn;
  settings.param_dtype = precision.param_dtype;
  settings.reduce_dtype = precision.reduce_dtype;
  settings.buffer_dtype = precision.buffer_dtype;
  // The root casts if either switch is on. A unit that keeps full precision inside a mixed model must cast as well: its
  // inputs come in the low dtype.
  const bool casts = precision.cast_forward_inputs || (is_root && precision.cast_root_forward_inputs);
  settings.cast_inputs = (casts && precision.param_dtype.has_value()) || overrides.keep_full_precision;
  settings.restore_output_dtype = overrides.keep_full_precision;
  settings.keep_low_precision_grads = precision.keep_low_precision_grads;
  settings.full_precision_in_eval = options.full_precision_in_eval;
  settings.optimizer_casts = options.optimizer_casts;
  if (overrides.cpu_offload.value_or(options.cpu_offload).offload_params) settings.offload = CpuOffloadPolicy();
  // Not the root by default: recomputing it would be a second forward of the whole model.
  settings.activation_checkpointing =
      overrides.activation_checkpointing.value_or(options.activation_checkpointing && !is_root);
  return settings;
}

void ApplyPolicy(const MixedPrecisionPolicy& policy, UnitSettings& settings) {
  settings.param_dtype = policy.param_dtype;
  settings.param_dtype_override_fn = policy.param_dtype_override_fn;
  settings.reduce_dtype = policy.reduce_dtype;
  settings.output_dtype = policy.output_dtype;
  settings.cast_inputs = policy.cast_forward_inputs && policy.param_dtype.has_value();
  settings.gradient_rules = GradientRules::kFsdp2;
}

}  // namespace fsdp
