// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/nonfinite.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/convert_elements.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Every code of every dtype of up to 16 bits, against conversion to float32.
TEST(NonFiniteTest, CountsWhatConversionShows) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2,
                            DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU}) {
    const int64_t size = SizeOf(dtype);
    const int64_t numel = int64_t{1} << (8 * size);
    std::vector<uint8_t> codes(numel * size);
    for (int64_t i = 0; i < numel; ++i) std::memcpy(&codes[i * size], &i, size);
    std::vector<float> values(numel);
    ASSERT_OK(Convert(dtype, codes.data(), DType::kFloat32, values.data(), numel));
    NonFinite expected;
    for (const float value : values) expected.Add({std::isnan(value), std::isinf(value)});
    const NonFinite counted = CountNonFinite(dtype, codes.data(), numel);
    EXPECT_EQ(counted.nan, expected.nan) << std::string(DTypeName(dtype));
    EXPECT_EQ(counted.inf, expected.inf) << std::string(DTypeName(dtype));
  }
}

TEST(NonFiniteTest, CountsThemAllHoweverManyThereAre) {
  const std::vector<float> nans(100'001, std::nanf(""));
  EXPECT_EQ(CountNonFinite(DType::kFloat32, nans.data(), 100'001).nan, 100'001);
  const std::vector<double> infinities(40'000, -HUGE_VAL);
  EXPECT_EQ(CountNonFinite(DType::kFloat64, infinities.data(), 40'000).inf, 40'000);
  const std::vector<uint8_t> small(100'001, 0x7C);
  EXPECT_EQ(CountNonFinite(DType::kFloat8E5M2, small.data(), 100'001).inf, 100'001);
}

TEST(NonFiniteTest, AComplexNumberCountsByItsParts) {
  const std::vector<double> parts = {1, std::nan(""), HUGE_VAL, std::nan(""), 2, 3};
  const NonFinite counted = CountNonFinite(DType::kComplex128, parts.data(), 3);
  EXPECT_EQ(counted.nan, 2);
  EXPECT_EQ(counted.inf, 1);
}

TEST(NonFiniteTest, IntegersAreFinite) {
  const std::vector<int64_t> ones(8, -1);
  EXPECT_FALSE(CountNonFinite(DType::kInt64, ones.data(), 8).any());
  EXPECT_FALSE(CountNonFinite(DType::kBool, ones.data(), 8).any());
}

TEST(NonFiniteTest, DataNeedNotBeAligned) {
  std::vector<char> bytes(1 + 3 * sizeof(float));
  const float values[] = {1, INFINITY, std::nanf("")};
  std::memcpy(&bytes[1], values, sizeof(values));
  const NonFinite counted = CountNonFinite(DType::kFloat32, &bytes[1], 3);
  EXPECT_EQ(counted.nan, 1);
  EXPECT_EQ(counted.inf, 1);
}

}  // namespace
}  // namespace fsdp
