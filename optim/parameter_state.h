// SPDX-License-Identifier: Apache-2.0
//
// Which states an optimizer keeps of a parameter, and their shapes.
#ifndef FSDP_OPTIM_PARAMETER_STATE_H_
#define FSDP_OPTIM_PARAMETER_STATE_H_

#include <functional>
#include <optional>
#include <string_view>

#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Whether a parameter has a state; empty: it has every state of its optimizer. The same on every rank.
using StateRule = std::function<bool(const ShardedParameter& parameter, std::string_view state)>;

// Adafactor's factors of a second moment: of each row, "row_var", and of each column, "col_var".
inline constexpr std::string_view kRowVar = "row_var";
inline constexpr std::string_view kColVar = "col_var";

// The shape of a factor, kRowVar or kColVar, of a parameter of two or more dimensions: 1 in the last dimension, or in
// the one before it. Factors are not cut: every rank has them whole. nullopt for other states, which have a value for
// each element of the parameter and are cut like it.
std::optional<Shape> FactorShape(std::string_view state, const Shape& parameter);

}  // namespace fsdp

#endif  // FSDP_OPTIM_PARAMETER_STATE_H_
