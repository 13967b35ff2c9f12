// SPDX-License-Identifier: Apache-2.0
//
// RestoreState: fills a model's shards, and its optimizers' state, from any source that can fill intervals, without
// moving tensors between ranks. fully_sharded_data_parallel.h documents the behaviour (Restore).
#ifndef FSDP_FSDP_STATE_RESTORE_STATE_H_
#define FSDP_FSDP_STATE_RESTORE_STATE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/options/restore_options.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Calls `load` with a state dict whose tensors alias this rank's shards of the model and of `optimizers`, for `load` to
// fill, and returns how the attributes of `options` differ from the saved ones. `root` is the
// module that `units` were made of. The error of any rank's `load`, and kFailedPrecondition for a required attribute
// that differs, on every rank. Uses `stream`. Collective; blocks.
absl::StatusOr<std::vector<AttributeDifference>> RestoreState(
    Module& root, const UnitStore& units, absl::Span<Optimizer* const> optimizers,
    const std::function<absl::Status(StateDict& wanted)>& load, const RestoreOptions& options, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_RESTORE_STATE_H_
