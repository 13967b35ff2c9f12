// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/distinct_elements.h"

#include <cstddef>
#include <map>
#include <string>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// How often each offset of the storage occurs in the view.
std::map<int64_t, int> PlacesOf(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  std::map<int64_t, int> places = {{0, 1}};
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::map<int64_t, int> next;
    for (const auto& [place, count] : places) {
      for (int64_t i = 0; i < sizes[d]; ++i) next[place + i * strides[d]] += count;
    }
    places = std::move(next);
  }
  return places;
}

struct View {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

TEST(DistinctElementsTest, EveryPlaceOfTheViewOccursOnce) {
  for (const auto& [sizes, strides] : std::vector<View>{
           {{}, {}},                      // a scalar
           {{0, 3}, {3, 1}},              // no elements
           {{3, 4}, {4, 1}},              // contiguous
           {{4, 3}, {1, 4}},              // transposed
           {{3, 4}, {0, 1}},              // expanded rows
           {{4, 3}, {1, 0}},              // expanded columns
           {{2, 3, 4}, {0, 2, 0}},        // with gaps
           {{5, 4}, {1, 1}},              // windows, step 1
           {{3, 4}, {2, 1}},              // windows, step 2
           {{3, 4, 2}, {2, 1, 100}},      // windows in each of two rows
           {{2, 3, 2, 3}, {3, 1, 3, 1}},  // windows of two dimensions
           {{3, 2}, {5, 1}},              // a slice: rows apart
           {{1, 7}, {99, 2}},             // every second
       }) {
    SCOPED_TRACE(absl::StrCat("sizes ", absl::StrJoin(sizes, ","), " strides ", absl::StrJoin(strides, ",")));
    const DistinctElements distinct = DistinctElements::Of(sizes, strides);
    std::map<int64_t, int> once = PlacesOf(sizes, strides);
    for (auto& [place, count] : once) count = 1;
    EXPECT_EQ(PlacesOf(distinct.shape.dims(), distinct.strides), once);
  }
}

TEST(DistinctElementsTest, WindowsOfStridesThatAreNoMultiplesHaveThePlacesOfTheView) {
  const DistinctElements distinct = DistinctElements::Of({4, 4}, {2, 3});
  const std::map<int64_t, int> view = PlacesOf({4, 4}, {2, 3});
  const std::map<int64_t, int> places = PlacesOf(distinct.shape.dims(), distinct.strides);
  EXPECT_EQ(places, view);
}

}  // namespace
}  // namespace fsdp
