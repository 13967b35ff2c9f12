// SPDX-License-Identifier: Apache-2.0
//
// FsdpOptions and its parts, by PyTorch's names and with its defaults (torch/distributed/fsdp/api.py).
#ifndef FSDP_FSDP_OPTIONS_H_
#define FSDP_FSDP_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/unit_options.h"
#include "fsdp/wrap_policy.h"

namespace fsdp {

// When backward all-gathers the unit that it will need next.
enum class BackwardPrefetch : uint8_t {
  kBackwardPre,   // before the current unit's gradients are computed: most overlap, one more unit in memory
  kBackwardPost,  // after they were computed and the unit resharded, before its reduce-scatter
  kNone,          // when it is needed: least memory, no overlap
};

// "pre", "post", "none".
std::string_view BackwardPrefetchName(BackwardPrefetch prefetch);
absl::StatusOr<BackwardPrefetch> ParseBackwardPrefetch(std::string_view name);

struct FsdpOptions {
  // Behaviour.

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Ranks per shard group of the hybrid strategies where the groups are made here: consecutive ranks shard, those of
  // equal place in their block replicate. Needs an auto_wrap_policy, as in PyTorch; 0: groups are given, or none.
  int shard_group_size = 0;

  MixedPrecision mixed_precision = {};

  // Which submodules become units of their own; the root always is one. Default: none.
  WrapPolicy auto_wrap_policy = {};

  // FSDP1's two flat layouts: false is plain concatenation; true aligns each parameter to 16 bytes of the forward
  // dtype. Names, shapes and hyperparameters are per original parameter in both.
  bool use_orig_params = false;

  // Seeds the Initializers of parameters that have no memory yet (meta parameters).
  uint64_t init_seed = 0;

  // Performance.

  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;

  // All-gather the next unit of the previous step's order before the current unit's forward. Default off: it costs one
  // more unsharded unit and pays only where the host is slow to issue work.
  bool forward_prefetch = false;

  // Keep just as many unsharded slots as the schedule needs, so that an all-gather waits for the unit that had its
  // slot. Off: a slot for each unit, so none ever waits, and memory is that of shard_grad_op.
  bool limit_all_gathers = true;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_OPTIONS_H_
