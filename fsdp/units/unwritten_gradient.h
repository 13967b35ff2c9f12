// SPDX-License-Identifier: Apache-2.0
//
// The part of a unit's bound gradient that no backward has written. The memory of a slot holds anything: the first
// kernel that computes the gradient of a parameter replaces it (Parameter::GradToWrite), and what no kernel has written
// when the unit's backward ends is set to zero. So a unit whose parameters all have gradients is not zeroed at all.
#ifndef FSDP_FSDP_UNITS_UNWRITTEN_GRADIENT_H_
#define FSDP_FSDP_UNITS_UNWRITTEN_GRADIENT_H_

#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// GradientState::grad, bound to memory that may hold anything, has no gradients yet. `stream` is backward's, and must
// outlive it.
void BeginGradient(Unit& unit, Stream& stream);

// Sets the elements to zero, on `stream`, that no backward has written since BeginGradient: parameters without a
// gradient and padding. Nothing if it was called since then.
void ZeroUnwritten(Unit& unit, Stream& stream);

// The gradient is discarded: nothing will be zeroed.
void ForgetGradient(Unit& unit);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_UNWRITTEN_GRADIENT_H_
