// SPDX-License-Identifier: Apache-2.0
//
// The options of FullyShard, by PyTorch's names and with its defaults (torch/distributed/fsdp/_fully_shard). All ranks
// must pass the same options.
#ifndef FSDP_FSDP_OPTIONS_FULLY_SHARD_OPTIONS_H_
#define FSDP_FSDP_OPTIONS_FULLY_SHARD_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/nn/parameter.h"
#include "fsdp/tensor/trace.h"

namespace fsdp {

// The fate of a unit's parameters after forward: whether, and to which group, they are resharded.
//   std::monostate  true, except for the root: false
//   true            they are resharded, and all-gathered again for backward
//   false           they stay unsharded until backward has used them
//   int k           they are resharded to groups of k ranks, from which backward all-gathers; k divides the shard group
using ReshardAfterForward = std::variant<std::monostate, bool, int>;

struct FullyShardOptions {
  ReshardAfterForward reshard_after_forward = {};

  // The dimension on which to cut a parameter; nullopt: 0. Negative dimensions count from the last. Others than 0 are
  // kUnimplemented, naming the parameter, if the ranks do not divide them, and for parameters of parallel layers. They
  // cost a copy for each outer row at each all-gather and reduction.
  std::function<std::optional<int>(const Parameter& parameter)> shard_placement_fn = {};

  MixedPrecisionPolicy mp_policy = {};
  OffloadPolicy offload_policy = {};

  // Parameters that FSDP does not shard, gather or reduce. State dicts hold them whole.
  std::vector<std::shared_ptr<Parameter>> ignored_params = {};

  // Keep only the module's input for backward, which runs its forward again; also for a module whose parameters are all
  // in inner units.
  bool activation_checkpointing = false;

  // As FsdpOptions::optimizer_casts.
  std::optional<bool> optimizer_casts = {};

  // Seeds the Initializers of parameters that have no memory yet; the root's counts.
  uint64_t init_seed = 0;

  // Records when the units' work really ran; the root's counts.
  std::shared_ptr<Trace> trace = {};
};

// kInvalidArgument, naming the field, its value and the expected values, for options that no module can have.
// FullyShard checks the options that depend on the module or on the mesh.
absl::Status Validate(const FullyShardOptions& options);

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_FULLY_SHARD_OPTIONS_H_
