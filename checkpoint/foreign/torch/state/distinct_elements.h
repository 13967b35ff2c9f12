// SPDX-License-Identifier: Apache-2.0
//
// DistinctElements: a view that has each element of another view's storage once. A view repeats elements if a stride is
// 0 (torch.expand) or windows overlap (torch.Tensor.unfold). Reading such a view costs as much as the view's size,
// reading its distinct elements as much as the file's. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DISTINCT_ELEMENTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DISTINCT_ELEMENTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Strides in elements, falling: row-major order is the order in the file.
struct DistinctElements {
  Shape shape;
  std::vector<int64_t> strides;

  // For a view of these sizes and strides (not negative), one of each for each dimension, whose elements are inside a
  // storage. The result has the same offsets as the view, each once, except for windows that overlap by strides that
  // are not multiples of each other, such as 2 and 3: then at most as often as in the view.
  static DistinctElements Of(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides);
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DISTINCT_ELEMENTS_H_
