// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/check.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxNumel = int64_t{1} << 60;

std::string DimsToString(absl::Span<const int64_t> dims) { return absl::StrCat("[", absl::StrJoin(dims, ", "), "]"); }

// The element count of valid `dims`.
absl::StatusOr<int64_t> CountElements(absl::Span<const int64_t> dims) {
  // Zero dimensions are left out of the product, so that the bound holds for row_numel() too, which leaves out the
  // first dimension.
  int64_t nonzero_product = 1;
  bool has_zero = false;
  for (int64_t dim : dims) {
    if (dim < 0)
      return absl::InvalidArgumentError(absl::StrCat("shape ", DimsToString(dims), " has a negative dimension"));
    if (dim == 0) {
      has_zero = true;
    } else if (dim > kMaxNumel / nonzero_product) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", DimsToString(dims), " has more than 2^60 elements"));
    } else {
      nonzero_product *= dim;
    }
  }
  return has_zero ? 0 : nonzero_product;
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> dims) : dims_(dims) {
  absl::StatusOr<int64_t> numel = CountElements(dims_);
  Check(numel.ok(), "a shape written in the program is invalid");
  numel_ = *numel;
}

absl::StatusOr<Shape> Shape::Create(absl::Span<const int64_t> dims) {
  absl::StatusOr<int64_t> numel = CountElements(dims);
  if (!numel.ok()) return numel.status();
  Shape shape;
  shape.dims_.assign(dims.begin(), dims.end());
  shape.numel_ = *numel;
  return shape;
}

int64_t Shape::row_numel() const {
  int64_t product = 1;
  for (int i = 1; i < rank(); ++i) product *= dims_[i];
  return product;
}

std::string Shape::ToString() const { return DimsToString(dims_); }

}  // namespace fsdp
