// SPDX-License-Identifier: Apache-2.0
//
// Shape: the sizes of a row-major tensor. A Shape that exists is valid: no negative dimension, and an element count
// that fits in int64 with room for 8-byte elements, so numel() * SizeOf(dtype) never overflows for them. A value;
// copies are cheap up to four dimensions.
#ifndef FSDP_TENSOR_SHAPE_H_
#define FSDP_TENSOR_SHAPE_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

class Shape {
 public:
  // A scalar: no dimensions, one element.
  Shape() = default;

  // For sizes known to be valid; CHECK-fails otherwise. Sizes that come from a file or a user go through Create.
  Shape(std::initializer_list<int64_t> dims);  // NOLINT: implicit, so that {2, 3} is a Shape

  // kInvalidArgument for a negative dimension or more than 2^60 elements; a zero dimension is legal, and the product of
  // the others must then stay below 2^60, so that row_numel() is safe too.
  static absl::StatusOr<Shape> Create(absl::Span<const int64_t> dims);

  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t dim(int i) const { return dims_[i]; }
  absl::Span<const int64_t> dims() const { return dims_; }
  // The number of elements; 1 for a scalar, 0 with a zero dimension.
  int64_t numel() const { return numel_; }

  // Elements of one row, that is, of all dimensions but the first; 1 for a scalar. O(rank).
  int64_t row_numel() const;

  // "[257, 48]"; "[]" for a scalar.
  std::string ToString() const;

  bool operator==(const Shape& other) const { return dims_ == other.dims_; }
  bool operator!=(const Shape& other) const { return !(*this == other); }

 private:
  absl::InlinedVector<int64_t, 4> dims_;  // inline: tensors are copied into every closure on a stream
  int64_t numel_ = 1;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_SHAPE_H_
