// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/joined_tensor.h"

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// A tensor of int32 elements 0, 1, 2, ... that is cut into parts, each with three elements before its own.
class JoinedTensorTest : public testing::Test {
 protected:
  static constexpr int64_t kFirst = 3;

  void Cut(const Shape& shape, std::vector<Box> boxes) {
    shape_ = shape;
    for (Box& box : boxes) {
      std::vector<int32_t> part(kFirst, -1);
      for (int64_t i = 0; i < shape.numel(); ++i) {
        int64_t rest = i;
        bool is_in = true;
        for (int d = shape.rank() - 1; d >= 0; --d) {
          const int64_t index = rest % shape.dim(d);
          rest /= shape.dim(d);
          is_in = is_in && index >= box.start[d] && index < box.start[d] + box.count[d];
        }
        if (is_in) part.push_back(static_cast<int32_t>(i));
      }
      pieces_.push_back({std::move(box), static_cast<int64_t>(parts_.size()), kFirst});
      parts_.push_back(std::move(part));
    }
  }

  std::vector<int32_t> Read(const Interval& interval) {
    std::vector<int32_t> out(interval.size(), -2);
    const PartReader read = [&](int64_t part, int64_t offset, absl::Span<std::byte> to) {
      ++reads_;
      const std::vector<int32_t>& from = parts_.at(part);
      EXPECT_GE(offset, kFirst * 4);
      EXPECT_LE(offset + to.size(), from.size() * 4);
      std::memcpy(to.data(), reinterpret_cast<const std::byte*>(from.data()) + offset, to.size());
      return absl::OkStatus();
    };
    EXPECT_OK(ReadJoined(shape_, 4, pieces_, interval, read, reinterpret_cast<std::byte*>(out.data())));
    return out;
  }

  void ExpectEveryInterval() {
    ASSERT_OK(CheckPieces(shape_, pieces_));
    for (int64_t begin = 0; begin <= shape_.numel(); ++begin) {
      for (int64_t end = begin; end <= shape_.numel(); ++end) {
        std::vector<int32_t> expected(end - begin);
        std::iota(expected.begin(), expected.end(), static_cast<int32_t>(begin));
        ASSERT_EQ(Read({begin, end}), expected) << begin << " " << end;
      }
    }
  }

  Shape shape_;
  std::vector<JoinedPiece> pieces_;
  std::vector<std::vector<int32_t>> parts_;
  int reads_ = 0;
};

TEST_F(JoinedTensorTest, RowsOfRanksAreJoined) {
  Cut({5, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}, {{4, 0}, {1, 3}}, {{5, 0}, {0, 3}}});
  ExpectEveryInterval();
}

TEST_F(JoinedTensorTest, ColumnsAndBlocksAreJoined) {
  Cut({4, 5}, {{{0, 0}, {4, 2}}, {{0, 2}, {3, 3}}, {{3, 2}, {1, 3}}});
  ExpectEveryInterval();
}

TEST_F(JoinedTensorTest, ThreeDimensionsAreJoined) {
  Cut({2, 3, 4}, {{{0, 0, 0}, {2, 3, 1}}, {{0, 0, 1}, {2, 1, 3}}, {{0, 1, 1}, {1, 2, 3}}, {{1, 1, 1}, {1, 2, 3}}});
  ExpectEveryInterval();
}

TEST_F(JoinedTensorTest, AScalarIsOnePart) {
  Cut({}, {{}});
  ExpectEveryInterval();
}

TEST_F(JoinedTensorTest, ATensorWithoutElementsNeedsNoPart) {
  shape_ = {0, 3};
  ExpectEveryInterval();
}

TEST_F(JoinedTensorTest, ColumnsAreReadInLargePieces) {
  Cut({4096, 16}, {{{0, 0}, {4096, 8}}, {{0, 8}, {4096, 8}}});
  Read({0, 4096 * 16});
  EXPECT_EQ(reads_, 2);
}

TEST_F(JoinedTensorTest, AHoleAnOverlapAndAPartOutsideAreNamed) {
  Cut({4, 4}, {{{0, 0}, {4, 2}}, {{0, 2}, {3, 2}}});
  EXPECT_THAT(CheckPieces(shape_, pieces_), StatusIs(absl::StatusCode::kDataLoss, "2 of 16 elements are in no part"));
  pieces_[1].box = {{0, 1}, {4, 3}};
  EXPECT_THAT(CheckPieces(shape_, pieces_),
              StatusIs(absl::StatusCode::kDataLoss, "the elements [4, 1] at [0, 1] are in two parts"));
  pieces_[1].box = {{0, 2}, {5, 2}};
  EXPECT_THAT(CheckPieces(shape_, pieces_),
              StatusIs(absl::StatusCode::kDataLoss, "the part [5, 2] at [0, 2] is not inside the shape [4, 4]"));
}

}  // namespace
}  // namespace fsdp
