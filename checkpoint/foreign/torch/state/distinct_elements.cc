// SPDX-License-Identifier: Apache-2.0
//
// The offset of a view's element is a sum with one multiple of each stride. A dimension of stride 0 adds nothing and is
// dropped. Two dimensions with strides s and k * s become one dimension of stride s when the first has at least k
// indices, because then the windows of the first touch or overlap. Contiguous dimensions join by the same rule.
#include "fsdp/checkpoint/foreign/torch/state/distinct_elements.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace fsdp {

DistinctElements DistinctElements::Of(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  struct Dimension {
    int64_t stride = 0;
    int64_t size = 1;
  };
  std::vector<Dimension> dimensions;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {Shape({0}), {1}};
    if (sizes[d] > 1 && strides[d] > 0) dimensions.push_back({strides[d], sizes[d]});
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::vector<Dimension> joined;  // by rising stride
  for (const Dimension& dimension : dimensions) {
    Dimension* const last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && dimension.stride % last->stride == 0 && dimension.stride / last->stride <= last->size) {
      // The view is inside a storage, so the sum does not overflow.
      last->size += (dimension.size - 1) * (dimension.stride / last->stride);
    } else {
      joined.push_back(dimension);
    }
  }
  std::vector<int64_t> joined_sizes;
  std::vector<int64_t> joined_strides;
  for (auto dimension = joined.rbegin(); dimension != joined.rend(); ++dimension) {
    joined_sizes.push_back(dimension->size);
    joined_strides.push_back(dimension->stride);
  }
  // At most as many elements as the view, whose shape is valid.
  return {*Shape::Create(joined_sizes), std::move(joined_strides)};
}

}  // namespace fsdp
