// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/value_difference.h"

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename T>
ValueDifference Compare(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                        const Tolerance& tolerance = {}) {
  ValueDifference difference;
  EXPECT_OK(
      CompareElements({dtype, a.data()}, {dtype, b.data()}, 0, static_cast<int64_t>(a.size()), tolerance, difference));
  return difference;
}

ValueDifference Floats(const std::vector<float>& a, const std::vector<float>& b, const Tolerance& tolerance = {}) {
  return Compare(DType::kFloat32, a, b, tolerance);
}

TEST(ValueDifferenceTest, EqualElementsHaveNoDistance) {
  const ValueDifference difference = Floats({1, 2, 3}, {1, 2, 3});
  EXPECT_EQ(difference.numel, 3);
  EXPECT_EQ(difference.changed, 0);
  EXPECT_EQ(difference.first_changed, -1);
  EXPECT_EQ(difference.ulps, 0);
  EXPECT_EQ(difference.cosine(), 1);
}

TEST(ValueDifferenceTest, MeasuresTheLargestDistances) {
  const ValueDifference difference = Floats({1, 8, 100, 0}, {1, 4, 99, 0});
  EXPECT_EQ(difference.changed, 2);
  EXPECT_EQ(difference.first_changed, 1);
  EXPECT_EQ(difference.max_abs, 4);
  EXPECT_EQ(difference.max_rel, 0.5);   // relative to the larger of 8 and 4
  EXPECT_EQ(difference.ulps, 1 << 23);  // an octave
  EXPECT_EQ(difference.share_changed(), 0.5);
  EXPECT_EQ(difference.outside, 2);
}

TEST(ValueDifferenceTest, ToleranceIsThatOfAllclose) {
  EXPECT_EQ(Floats({10, 10}, {11, 12}, {.atol = 1}).outside, 1);
  EXPECT_EQ(Floats({10, 10}, {11, 16}, {.atol = 0, .rtol = 0.25}).outside, 1);
  EXPECT_EQ(Floats({10, 12}, {11, 16}, {.atol = 0, .rtol = 0.25}).outside, 0);  // |a - b| = rtol |b| is within
  EXPECT_EQ(Floats({10, 12}, {11, 16}, {.atol = 0, .rtol = 0.25}).changed, 2);
}

TEST(ValueDifferenceTest, ComplexNumbersAreAsFarApartAsInThePlane) {
  using Numbers = std::vector<std::complex<float>>;
  const Numbers a = {{1, 2}, {3, 4}, {kNaN, 0}, {0, kNaN}, {1, kInfinity}, {kInfinity, 0}};
  const Numbers b = {{1, 2}, {6, 0}, {0, kNaN}, {0, 0}, {1, kInfinity}, {-kInfinity, 0}};
  const ValueDifference difference = Compare(DType::kComplex64, a, b, {.atol = 5});
  EXPECT_EQ(difference.numel, 6);
  EXPECT_EQ(difference.changed, 3);
  EXPECT_EQ(difference.first_changed, 1);
  EXPECT_EQ(difference.nan_both, 1);
  EXPECT_EQ(difference.nan_mismatches, 1);
  EXPECT_EQ(difference.outside, 2);  // 3 + 4i and 6 are 5 apart
  EXPECT_EQ(difference.max_abs, std::numeric_limits<double>::infinity());
  EXPECT_EQ(difference.ulps, std::nullopt);
  EXPECT_EQ(Compare(DType::kComplex64, Numbers{{3, 4}}, Numbers{{6, 0}}).max_abs, 5);
  EXPECT_EQ(Compare(DType::kComplex64, Numbers{{0, 2}}, Numbers{{0, 1}}).max_rel, 0.5);
  const float real = 3;
  const std::complex<double> same = {3, 0};
  ValueDifference mixed;
  ASSERT_OK(CompareElements({DType::kFloat32, &real}, {DType::kComplex128, &same}, 0, 1, {}, mixed));
  EXPECT_EQ(mixed.changed, 0);
}

// A pair differs as a point in the plane does.
TEST(ValueDifferenceTest, PackedElementsAreComparedAsTheirNumbers) {
  // (0.5, 1), (6, -6), (0, 0) and (2, 3) against (0.5, 1), (3, -2), (-0, 0) and (2, 3)
  const ValueDifference difference =
      Compare<uint8_t>(DType::kFloat4E2M1FNx2, {0x21, 0xF7, 0x00, 0x54}, {0x21, 0xC5, 0x08, 0x54});
  EXPECT_EQ(difference.numel, 4);
  EXPECT_EQ(difference.changed, 1);
  EXPECT_EQ(difference.first_changed, 1);
  EXPECT_EQ(difference.max_abs, 5);
  EXPECT_EQ(difference.ulps, std::nullopt);
}

TEST(ValueDifferenceTest, UlpsAreStepsBetweenRepresentableNumbers) {
  EXPECT_EQ(Floats({1}, {std::nextafter(1.0f, 2.0f)}).ulps, 1);
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Floats({tiny}, {-tiny}).ulps, 2);
  EXPECT_EQ(Compare<uint16_t>(DType::kBFloat16, {0x3F80}, {0x3F83}).ulps, 3);
  EXPECT_EQ(Compare<uint16_t>(DType::kFloat16, {0x0001}, {0x8001}).ulps, 2);
  EXPECT_EQ(Compare<uint8_t>(DType::kFloat8E4M3FN, {0x7E}, {0x78}).ulps, 6);
  EXPECT_EQ(Compare<double>(DType::kFloat64, {1.0}, {1.0 + std::numeric_limits<double>::epsilon()}).ulps, 1);
  EXPECT_EQ(Compare<int32_t>(DType::kInt32, {1}, {2}).ulps, std::nullopt);
}

TEST(ValueDifferenceTest, BothZerosAreEqual) {
  const ValueDifference difference = Floats({0.0f, 0.0f}, {-0.0f, 0.0f});
  EXPECT_EQ(difference.changed, 0);
  EXPECT_EQ(difference.cosine(), 1);
}

TEST(ValueDifferenceTest, NaNEqualsNaNAndNothingElse) {
  const ValueDifference difference = Floats({kNaN, kNaN, 1, 2}, {-kNaN, 1, kNaN, 2}, {.atol = 1e30});
  EXPECT_EQ(difference.nan_both, 1);
  EXPECT_EQ(difference.nan_mismatches, 2);
  EXPECT_EQ(difference.changed, 2);
  EXPECT_EQ(difference.outside, 2);
  EXPECT_EQ(difference.max_abs, 0);
  EXPECT_EQ(difference.cosine(), 1);
}

TEST(ValueDifferenceTest, InfinityIsInfinitelyFarFromEverythingElse) {
  EXPECT_EQ(Floats({kInfinity, 1}, {kInfinity, 1}).changed, 0);
  const ValueDifference difference = Floats({kInfinity, 1}, {1e30f, -kInfinity}, {.atol = 1e30, .rtol = 1});
  EXPECT_EQ(difference.outside, 2);
  EXPECT_EQ(difference.max_abs, kInfinity);
  EXPECT_EQ(difference.max_rel, kInfinity);
}

TEST(ValueDifferenceTest, LongIntegersAreComparedExactly) {
  const int64_t large = int64_t{1} << 60;
  const ValueDifference difference = Compare<int64_t>(DType::kInt64, {large, 5}, {large + 1, 5});
  EXPECT_EQ(difference.changed, 1);
  EXPECT_EQ(difference.max_abs, 1);
  EXPECT_EQ(Compare<uint64_t>(DType::kUInt64, {~uint64_t{0}}, {~uint64_t{0} - 1}).max_abs, 1);
  EXPECT_EQ(Compare<int64_t>(DType::kInt64, {std::numeric_limits<int64_t>::min()}, {0}).max_abs, 9223372036854775808.0);
}

TEST(ValueDifferenceTest, DTypesThatDifferAreComparedByValue) {
  const std::vector<float> a = {1, -2, 3};
  const std::vector<uint16_t> b = {0x3F80, 0xC000, 0x4080};  // bfloat16: 1, -2, 4
  ValueDifference difference;
  ASSERT_OK(CompareElements({DType::kFloat32, a.data()}, {DType::kBFloat16, b.data()}, 0, 3, {}, difference));
  EXPECT_EQ(difference.changed, 1);
  EXPECT_EQ(difference.max_abs, 1);
  EXPECT_EQ(difference.ulps, std::nullopt);
}

TEST(ValueDifferenceTest, ARoundingToTheOtherDTypeIsToldFromOtherChanges) {
  // bfloat16: 1, the rounding of 1.001 (1), 1.0078125 (no rounding of 1.001), infinity.
  const std::vector<float> a = {1, 1.001f, 1.001f, 3.4e38f};
  const std::vector<uint16_t> b = {0x3F80, 0x3F80, 0x3F81, 0x7F80};
  ValueDifference narrowed;
  ASSERT_OK(CompareElements({DType::kFloat32, a.data()}, {DType::kBFloat16, b.data()}, 0, 4, {}, narrowed));
  EXPECT_EQ(narrowed.changed, 3);
  EXPECT_EQ(narrowed.beyond_rounding, 2);
  ValueDifference widened;
  ASSERT_OK(CompareElements({DType::kBFloat16, b.data()}, {DType::kFloat32, a.data()}, 0, 4, {}, widened));
  EXPECT_EQ(widened.beyond_rounding, 2);
  // In one dtype nothing is a rounding, nor between a float and an integer.
  EXPECT_EQ(Floats({1, 1.5f}, {1, 1.25f}).beyond_rounding, 1);
  const std::vector<int32_t> integers = {1, 1, 1, 1};
  ValueDifference mixed;
  ASSERT_OK(CompareElements({DType::kFloat32, a.data()}, {DType::kInt32, integers.data()}, 0, 4, {}, mixed));
  EXPECT_EQ(mixed.beyond_rounding, 3);
}

TEST(ValueDifferenceTest, CosineIsThatOfTheVectors) {
  EXPECT_EQ(Floats({1, 0}, {0, 1}).cosine(), 0);
  EXPECT_EQ(Floats({3, 4}, {-3, -4}).cosine(), -1);
  EXPECT_EQ(Floats({0, 0}, {0, 1}).cosine(), std::nullopt);
}

TEST(ValueDifferenceTest, TheRelativeChangeIsOfTheFiniteElements) {
  EXPECT_EQ(Floats({3, 4, kNaN, kInfinity}, {0, 0, 1, 2}).relative_change(), 1);
  EXPECT_EQ(Floats({3, 4}, {3, 4}).relative_change(), 0);
  EXPECT_EQ(Floats({0, 0}, {0, 1}).relative_change(), std::nullopt);
  // 1 - cosine would be lost in the digits of a float64.
  EXPECT_EQ(Compare<double>(DType::kFloat64, {1}, {1 + 0x1p-40}).relative_change(), 0x1p-40);
  const std::vector<std::complex<float>> a = {{3, 4}}, b = {{0, 4}};
  EXPECT_EQ(Compare(DType::kComplex64, a, b).relative_change(), 0.6);
}

TEST(ValueDifferenceTest, PiecesAddUpToTheWhole) {
  std::vector<float> a(5000);
  std::vector<float> b(5000);
  for (int i = 0; i < 5000; ++i) {
    a[i] = static_cast<float>(i % 97);
    b[i] = i % 501 == 500 ? a[i] + 1 : a[i];
  }
  const ValueDifference whole = Floats(a, b);
  ValueDifference sum;
  for (int begin = 0; begin < 5000; begin += 777) {
    ValueDifference piece;
    ASSERT_OK(CompareElements({DType::kFloat32, &a[begin]}, {DType::kFloat32, &b[begin]}, begin,
                              std::min(777, 5000 - begin), {}, piece));
    sum.Add(piece);
  }
  EXPECT_EQ(sum.numel, whole.numel);
  EXPECT_EQ(sum.changed, 9);
  EXPECT_EQ(sum.beyond_rounding, 9);
  EXPECT_EQ(sum.first_changed, 500);
  EXPECT_EQ(sum.max_abs, whole.max_abs);
  EXPECT_EQ(sum.ulps, whole.ulps);
  EXPECT_EQ(sum.dot, whole.dot);  // sums of small integers are exact
  EXPECT_EQ(sum.squares_b, whole.squares_b);
  EXPECT_EQ(sum.squares_difference, whole.squares_difference);
}

}  // namespace
}  // namespace fsdp
