// SPDX-License-Identifier: Apache-2.0
//
// StochasticRounding: rounds float32 to bfloat16 up or down at random, the nearer number with the larger probability,
// so that the mean of many roundings is the number itself. A bfloat16 has 8 bits: to the nearest, a step that is
// smaller than about 1/500 of a weight would be lost, in every step again. (Gupta et al., "Deep learning with limited
// numerical precision", 2015.) The random numbers are a function of seed, parameter, step and element, so that there is
// no state to save, and n ranks round as one, but for parameters that are cut on another dimension than 0.
#ifndef FSDP_OPTIM_STOCHASTIC_ROUNDING_H_
#define FSDP_OPTIM_STOCHASTIC_ROUNDING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

// Of one parameter's slice in one step. A value; any thread.
class StochasticRounding {
 public:
  // `step` counts the parameter's steps.
  StochasticRounding(uint64_t seed, const ShardedParameter& parameter, int64_t step);

  // The random numbers of elements `begin`, `begin` + 1, ... of a tensor that is cut like the parameter: of the
  // parameter itself (0), or of its state number `tensor` - 1.
  void Fill(int tensor, int64_t begin, absl::Span<uint32_t> numbers) const;

  // Likewise, of a state that every rank has whole.
  void FillWhole(int tensor, int64_t begin, absl::Span<uint32_t> numbers) const;

 private:
  uint64_t seed_, sequence_, first_;
};

// The bits of `value` rounded to bfloat16 by the upper half of `number`. A bfloat16 is not changed; a NaN stays a NaN.
uint16_t RoundAtRandom(float value, uint32_t number);

}  // namespace fsdp

#endif  // FSDP_OPTIM_STOCHASTIC_ROUNDING_H_
