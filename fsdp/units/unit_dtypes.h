// SPDX-License-Identifier: Apache-2.0
//
// The dtypes of one unit's parameters. A flat parameter has one. Under FSDP2's layout (LayoutKind::kDim0) the trained
// ones have one, in which an optimizer keeps them, and frozen ones may have any: the bfloat16 base of an adapter, or
// the bytes of a quantised one. Some may be computed in another dtype than the others (param_dtype_override_fn).
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

// The dtype that parameters of `dtype` are unsharded in, unless overridden: param_dtype, if there is one and `dtype`
// can be cast to it.
DType ComputeDType(DType dtype, const UnitSettings& settings);

// Parameters of one dtype that are unsharded in one dtype.
struct DTypeGroup {
  DType dtype, compute_dtype;
  std::vector<std::shared_ptr<Parameter>> parameters;
};

// The parameters of `unit` by dtypes. The first group has the unit's own dtypes: those of its trained parameters
// without an override; if there are none, of trained ones, of the first one that kernels take, or of the first.
// kInvalidArgument, naming two parameters and their dtypes, if those that must have one dtype have several; naming one
// if it is of integers and requires a gradient, or if the override returns a dtype that is neither its own nor
// param_dtype.
absl::StatusOr<std::vector<DTypeGroup>> ByDType(const UnitModule& unit, const UnitSettings& settings);

// Between passes: kFailedPrecondition, naming the parameter, if requires_grad was set for one of `part` whose dtype is
// not that of `unit`, of which it is a part.
absl::Status CheckTrains(const Unit& unit, const Unit& part);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNIT_DTYPES_H_
