// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/shard_exchange.h"

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Status CheckWhole(std::string_view optimizer, const ShardedParameter& parameter, const ShardExchange* exchange) {
  if (parameter.part) {
    return absl::UnimplementedError(absl::StrCat(
        std::string(optimizer), ": parameter \"", parameter.fqn, "\" is a part of a larger tensor, ",
        parameter.whole_shape().ToString(), ", of which other ranks have the rest: train it with AdamW or SGD"));
  }
  if (exchange != nullptr || parameter.interval == Interval{0, parameter.shape.numel()}) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      std::string(optimizer), ": this rank has the elements ", parameter.interval.ToString(), " of parameter \"",
      parameter.fqn, "\" ", parameter.shape.ToString(), ", expected all: pass MakeShardExchange(model)"));
}

}  // namespace fsdp
