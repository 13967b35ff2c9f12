// SPDX-License-Identifier: Apache-2.0
//
// ShardExchange: what an optimizer of whole matrices needs of the other ranks that have slices of a parameter. Without
// FSDP there are none; MakeShardExchange (fsdp/make_shard_exchange.h) makes one for a model's units.
#ifndef FSDP_OPTIM_SHARD_EXCHANGE_H_
#define FSDP_OPTIM_SHARD_EXCHANGE_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

// Both calls are collective and block: every rank makes the same ones, with the same parameters in the same order, also
// for parameters of which it has no elements.
class ShardExchange {
 public:
  virtual ~ShardExchange() = default;

  // Each of values[k], of one size on every rank, becomes its sum over the ranks that have slices of parameters[k], in
  // the order of ranks, so that all of them get the same bits in every run.
  virtual absl::Status Sum(absl::Span<const ShardedParameter* const> parameters,
                           absl::Span<std::vector<double>> values) = 0;

  // `whole`, of parameter.shape.numel() elements, gets those of all ranks; `slice` has this rank's, parameter.interval.
  virtual absl::Status Gather(const ShardedParameter& parameter, const std::vector<float>& slice,
                              std::vector<float>& whole) = 0;
};

// OK if an optimizer named `optimizer` can have `parameter` whole: this rank has all of it, or there is an `exchange`,
// which may be null. kFailedPrecondition otherwise, and kUnimplemented for a part of a larger tensor (tensor
// parallelism, or a cut along another dimension than 0), naming the parameter.
absl::Status CheckWhole(std::string_view optimizer, const ShardedParameter& parameter, const ShardExchange* exchange);

}  // namespace fsdp

#endif  // FSDP_OPTIM_SHARD_EXCHANGE_H_
