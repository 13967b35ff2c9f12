// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/shape.h"

#include <limits>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(ShapeTest, CountsElements) {
  const Shape shape = {257, 48, 3};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.dim(1), 48);
  EXPECT_EQ(shape.numel(), 257 * 48 * 3);
  EXPECT_EQ(shape.row_numel(), 48 * 3);
  EXPECT_EQ(shape.ToString(), "[257, 48, 3]");
  EXPECT_THAT(shape.dims(), testing::ElementsAre(257, 48, 3));
}

TEST(ShapeTest, AScalarHasOneElementAndNoDimensions) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.row_numel(), 1);
  EXPECT_EQ(scalar.ToString(), "[]");
  EXPECT_THAT(Shape::Create({}), IsOkAndHolds(scalar));
}

TEST(ShapeTest, ZeroDimensionsAreLegal) {
  const Shape empty = {0, 5};
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_EQ(empty.row_numel(), 5);
  EXPECT_EQ(Shape({3, 0}).row_numel(), 0);
}

TEST(ShapeTest, ComparesDimensionByDimension) {
  EXPECT_EQ(Shape({2, 3}), Shape({2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({6}), Shape({2, 3}));
  EXPECT_NE(Shape(), Shape({1}));
}

TEST(ShapeTest, CreateRefusesNegativeDimensions) {
  const std::vector<int64_t> dims = {4, -1};
  EXPECT_THAT(Shape::Create(dims),
              StatusIs(absl::StatusCode::kInvalidArgument, "shape [4, -1] has a negative dimension"));
}

TEST(ShapeTest, CreateRefusesWhatWouldOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::vector<std::vector<int64_t>> too_large = {
      {kMax}, {(int64_t{1} << 60) + 1}, {int64_t{1} << 31, int64_t{1} << 30}, {0, int64_t{1} << 40, int64_t{1} << 40}};
  for (const std::vector<int64_t>& dims : too_large) {
    EXPECT_THAT(Shape::Create(dims),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("has more than 2^60 elements")));
  }
  EXPECT_OK(Shape::Create(std::vector<int64_t>{int64_t{1} << 60}));
}

TEST(ShapeDeathTest, AWrongShapeInTheProgramIsFatal) { EXPECT_DEATH(Shape({-1}), "shape written in the program"); }

}  // namespace
}  // namespace fsdp
