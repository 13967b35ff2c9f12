// SPDX-License-Identifier: Apache-2.0
//
// Initializer: a parameter's initial distribution, as a pure function of seed, name and element index, so that any rank
// can fill any interval and every wrapping, strategy and world size starts from the same values.
#ifndef FSDP_NN_INITIALIZER_H_
#define FSDP_NN_INITIALIZER_H_

#include <cstdint>
#include <string_view>

#include "fsdp/tensor/interval.h"

namespace fsdp {

struct Initializer {
  // kConstant: every element is `mean`. kNormal: independent normal values of `mean` and `stddev`.
  enum class Kind : uint8_t { kConstant, kNormal };

  Kind kind = Kind::kConstant;
  float mean = 0;    // kConstant: the value
  float stddev = 0;  // kNormal
  Interval zeros;    // these elements are 0 all the same

  // Neither sets `zeros`.
  static Initializer Constant(float value) { return {Kind::kConstant, value, 0, {}}; }
  static Initializer Normal(float mean, float stddev) { return {Kind::kNormal, mean, stddev, {}}; }

  // Elements `interval` of parameter `fqn` under `seed`, to interval.size() floats at `out`. Any two calls agree on the
  // elements that their intervals share. Thread-safe. O(interval.size()), on the calling thread.
  void Fill(uint64_t seed, std::string_view fqn, const Interval& interval, float* out) const;
};

}  // namespace fsdp

#endif  // FSDP_NN_INITIALIZER_H_
