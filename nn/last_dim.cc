// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/last_dim.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace fsdp {

absl::Status CheckLastDim(std::string_view layer, const Tensor& t, int64_t wanted) {
  const Shape& shape = t.shape();
  if (t.defined() && shape.rank() > 0 && shape.dim(shape.rank() - 1) == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(layer), ": input ", t.defined() ? shape.ToString() : "undefined", " != wanted [..., ", wanted, "]"));
}

Tensor AsRows(const Tensor& t) {
  const int64_t last = t.shape().dim(t.shape().rank() - 1);
  return t.View({t.numel() / last, last});
}

// The leading dimensions come from a tensor that exists, so the result is a valid Shape unless `last` itself is absurd.
Shape WithLastDim(const Shape& shape, int64_t last) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims.back() = last;
  return *Shape::Create(dims);
}

}  // namespace fsdp
