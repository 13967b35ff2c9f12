// SPDX-License-Identifier: Apache-2.0
//
// MakeShardExchange: lets an optimizer that needs whole parameters, such as Adafactor, work on a model's shards:
//
//   Adafactor optimizer(model->parameters(), {.lr = 1e-2}, MakeShardExchange(*model));
#ifndef FSDP_FSDP_MAKE_SHARD_EXCHANGE_H_
#define FSDP_FSDP_MAKE_SHARD_EXCHANGE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_sharded_data_parallel.h"
#include "fsdp/optim/shard_exchange.h"

namespace fsdp {

// `model` must outlive the result. Each parameter is exchanged over the shard group of its unit; under the hybrid
// strategies all replicas compute the same. kFailedPrecondition for a module of FullyShard that is not a root.
std::shared_ptr<ShardExchange> MakeShardExchange(const FullyShardedDataParallel& model);
absl::StatusOr<std::shared_ptr<ShardExchange>> MakeShardExchange(FsdpModule& module);

}  // namespace fsdp

#endif  // FSDP_FSDP_MAKE_SHARD_EXCHANGE_H_
