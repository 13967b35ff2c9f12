// SPDX-License-Identifier: Apache-2.0
//
// ValueDifference: measures the differences between the elements of two tensors. Computed piece by piece and added up,
// so tensors of any size take constant memory; the order of the pieces affects only the last digits of `cosine`.
//
// Two elements are equal when they compare equal as numbers (-0 equals 0), are infinities of one sign, or are both NaN,
// with any payloads. A complex number is NaN when one of its parts is. NaN against a number is a change beyond any
// tolerance and without a size: it is counted in `nan_mismatches` and excluded from the maxima and the cosine. The
// distance between an infinity and any unequal value is infinite.
#ifndef FSDP_CHECKPOINT_SOURCE_VALUE_DIFFERENCE_H_
#define FSDP_CHECKPOINT_SOURCE_VALUE_DIFFERENCE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// |a - b| <= atol + rtol * |b|, as torch.allclose.
struct Tolerance {
  double atol = 0;
  double rtol = 0;
};

struct ValueDifference {
  int64_t numel = 0;
  int64_t changed = 0;           // elements that are not equal
  int64_t outside = 0;           // of these, beyond the tolerance
  int64_t nan_mismatches = 0;    // of these, NaN on only one side
  int64_t nan_both = 0;          // NaN on both sides, so equal
  double max_abs = 0;            // |a - b|
  double max_rel = 0;            // |a - b| / max(|a|, |b|): 0 to 2, or infinite
  std::optional<uint64_t> ulps;  // most representable numbers between a and b; of floats of one dtype, else absent
  int64_t first_changed = -1;    // the first element that is not equal; -1 without one
  int64_t beyond_rounding = 0;   // of `changed`, without the finite floats that are the other one, rounded to its dtype
  double dot = 0;                // sums over elements that are finite on both sides
  double squares_a = 0;
  double squares_b = 0;
  double squares_difference = 0;  // of a - b

  // The cosine of the angle between a and b as vectors: 1 when nothing changed; absent when exactly one of them is zero
  // or a sum overflows.
  std::optional<double> cosine() const;

  // |a - b| / |a| as vectors, over elements that are finite on both sides; absent when a is zero and b is not.
  std::optional<double> relative_change() const;
  double share_changed() const { return numel == 0 ? 0 : static_cast<double>(changed) / static_cast<double>(numel); }

  // Adds the difference of another piece of the same tensor, or of another tensor. If only one has `ulps`, it is kept.
  void Add(const ValueDifference& other);
};

// Elements of `dtype` at `data`, in host memory, aligned or not.
struct Elements {
  DType dtype;
  const void* data;
};

// Adds elements [begin, begin + numel) of two tensors to `difference`. Different dtypes are compared as float64, or
// complex128 if one of them is complex, which is exact except for 64-bit integers; these are compared exactly if both
// have the same dtype.
absl::Status CompareElements(const Elements& a, const Elements& b, int64_t begin, int64_t numel,
                             const Tolerance& tolerance, ValueDifference& difference);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_VALUE_DIFFERENCE_H_
