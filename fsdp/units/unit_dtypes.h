// SPDX-License-Identifier: Apache-2.0
//
// The dtypes of one unit's parameters. A flat parameter has one. Under FSDP2's layout (LayoutKind::kDim0) the trained
// ones have one, in which an optimizer keeps them, and frozen ones may have any: the bfloat16 base of an adapter, or
// the bytes of a quantised one.
#ifndef FSDP_FSDP_UNITS_UNIT_DTYPES_H_
#define FSDP_FSDP_UNITS_UNIT_DTYPES_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/shard_layout.h"
#include "fsdp/fsdp/units/unit_settings.h"
#include "fsdp/fsdp/wrap/partition.h"
#include "fsdp/nn/parameter.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct Unit;

// True if the kernels of devices take it: float64, float32, bfloat16 and float16. Tensors of all others are gathered,
// stored and loaded as they are.
bool IsComputed(DType dtype);

// The dtype that parameters of `dtype` are unsharded in: param_dtype, if there is one and `dtype` can be cast to it.
DType ComputeDType(DType dtype, const UnitSettings& settings);

using ParameterGroup = std::vector<std::shared_ptr<Parameter>>;

// The parameters of `unit` by dtype, in order: first the trained ones' dtype; if none is trained, the first one that
// kernels take, or the first of all. kInvalidArgument, naming two parameters and their dtypes, if those that must have
// one dtype have several; naming one if it is of integers and requires a gradient.
absl::StatusOr<std::vector<ParameterGroup>> ByDType(const UnitModule& unit, LayoutKind layout);

// Between passes: kFailedPrecondition, naming the parameter, if requires_grad was set for one whose dtype is not the
// one that `unit` trains.
absl::Status CheckTrains(const Unit& unit);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_DTYPES_H_
