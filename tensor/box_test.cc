// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/box.h"

#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The flat indices in a box, in row-major order.
std::vector<int64_t> ElementsOf(const Shape& shape, const Box& box) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    int64_t rest = i;
    bool inside = true;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      const int64_t index = rest % shape.dim(d);
      rest /= shape.dim(d);
      inside = inside && box.start[d] <= index && index < box.start[d] + box.count[d];
    }
    if (inside) elements.push_back(i);
  }
  return elements;
}

TEST(HyperslabTest, BoxesAreTheIntervalInOrder) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 4}, Shape{2, 3, 4}, Shape{3, 1, 2, 2}, Shape{1, 5, 1}}) {
    for (int64_t begin = 0; begin <= shape.numel(); ++begin) {
      for (int64_t end = begin; end <= shape.numel(); ++end) {
        const std::vector<Box> boxes = BoxesOf(shape, {begin, end});
        EXPECT_LE(static_cast<int>(boxes.size()), std::max(1, 2 * shape.rank() - 1));
        std::vector<int64_t> elements;
        for (const Box& box : boxes) {
          for (const int64_t element : ElementsOf(shape, box)) elements.push_back(element);
        }
        std::vector<int64_t> expected;
        for (int64_t i = begin; i < end; ++i) expected.push_back(i);
        EXPECT_EQ(elements, expected) << shape.ToString() << " [" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(HyperslabTest, RowsAreOneBoxAndKeepTheirShape) {
  EXPECT_EQ(BoxesOf({6, 4, 2}, {8, 32}).size(), 1);
  EXPECT_EQ(PartDims({6, 4, 2}, {8, 32}), (std::vector<int64_t>{3, 4, 2}));
  EXPECT_EQ(PartDims({6, 4, 2}, {8, 31}), (std::vector<int64_t>{23}));
  EXPECT_EQ(PartDims({}, {0, 1}), (std::vector<int64_t>{}));
  EXPECT_EQ(PartDims({3, 0}, {0, 0}), (std::vector<int64_t>{3, 0}));
}

}  // namespace
}  // namespace fsdp
