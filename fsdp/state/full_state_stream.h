// SPDX-License-Identifier: Apache-2.0
//
// A FULL state without the full model: rank 0 gets whole tensors unit by unit and keeps no tensor, so that its extra
// memory is at most two units in the original dtype, for models of any size. For writers that plan a file from names
// and shapes, and then fill it.
//
//   FSDP_ASSIGN_OR_RETURN(const StateDict contents, model->DescribeFullState(&optimizer));  // names, shapes, texts
//   FSDP_RETURN_IF_ERROR(model->StreamFullState(&optimizer, [&](const StateDict& part) { return Write(part); }));
#ifndef FSDP_FSDP_STATE_FULL_STATE_STREAM_H_
#define FSDP_FSDP_STATE_FULL_STATE_STREAM_H_

#include <functional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// A FULL state dict without elements: the tensors that StreamFullState visits, by name, dtype and shape, and its texts,
// aliases and layouts. kInvalidArgument names a parameter that two optimizers have. Local.
absl::StatusOr<StateDict> DescribeFullState(Module& root, const UnitStore& units,
                                            absl::Span<Optimizer* const> optimizers);

// Calls `visit`, only on rank 0, with every tensor of the model and of `optimizers`, several at a time, whole and in
// host memory, which is reused when the call returns. After the first error `visit` is not called again, but the units
// are still gathered, because the other ranks wait for that; then every rank gets the error. Collective; blocks.
absl::Status StreamFullState(Module& root, const UnitStore& units, absl::Span<Optimizer* const> optimizers,
                             const std::function<absl::Status(const StateDict& part)>& visit);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_FULL_STATE_STREAM_H_
