// SPDX-License-Identifier: Apache-2.0
//
// The results of PyTorch 2.15: explicit codes for some numbers, and a digest of the codes of two million.
#include "fsdp/tensor/rare_floats.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsNan;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kRareFloats[] = {DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU};

std::vector<int> Encoded(DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> codes(values.size());
  Float32ToRareFloats(values.data(), dtype, codes.data(), static_cast<int64_t>(values.size()));
  return {codes.begin(), codes.end()};
}

std::vector<float> Decoded(DType dtype, const std::vector<uint8_t>& codes) {
  std::vector<float> values(codes.size());
  RareFloatsToFloat32(dtype, codes.data(), values.data(), static_cast<int64_t>(codes.size()));
  return values;
}

TEST(RareFloatsTest, CodesAreTheValuesOfPyTorch) {
  EXPECT_THAT(Decoded(DType::kFloat8E4M3FNUZ, {0, 1, 7, 8, 64, 127, 129, 255}),
              ElementsAre(0, 0x1p-10f, 7 * 0x1p-10f, 0x1p-7f, 1, 240, -0x1p-10f, -240));
  EXPECT_THAT(Decoded(DType::kFloat8E5M2FNUZ, {0, 1, 4, 64, 127, 129, 255}),
              ElementsAre(0, 0x1p-17f, 0x1p-15f, 1, 57344, -0x1p-17f, -57344));
  EXPECT_THAT(Decoded(DType::kFloat8E8M0FNU, {0, 1, 127, 128, 254}), ElementsAre(0x1p-127f, 0x1p-126f, 1, 2, 0x1p127f));
  EXPECT_THAT(Decoded(DType::kFloat8E4M3FNUZ, {0x80})[0], IsNan());
  EXPECT_THAT(Decoded(DType::kFloat8E5M2FNUZ, {0x80})[0], IsNan());
  EXPECT_THAT(Decoded(DType::kFloat8E8M0FNU, {0xFF})[0], IsNan());
}

TEST(RareFloatsTest, EveryCodeComesBack) {
  for (const DType dtype : kRareFloats) {
    for (int code = 0; code < 256; ++code) {
      const std::vector<float> value = Decoded(dtype, {static_cast<uint8_t>(code)});
      EXPECT_THAT(Encoded(dtype, value), ElementsAre(code)) << DTypeName(dtype);
    }
  }
}

TEST(RareFloatsTest, RoundsAndOverflowsAsPyTorch) {
  EXPECT_THAT(Encoded(DType::kFloat8E4M3FNUZ, {-0.0f, -1e-30f, kInf, -kInf, kNan, 247.2f, 248, -480, 1.0625f, 1.1875f}),
              ElementsAre(0, 0, 128, 128, 128, 127, 128, 128, 64, 66));
  EXPECT_THAT(Encoded(DType::kFloat8E5M2FNUZ, {-0.0f, kInf, kNan, 61358.08f, 61440, 1.125f, 1.375f}),
              ElementsAre(0, 128, 128, 127, 128, 64, 66));
  EXPECT_THAT(Encoded(DType::kFloat8E8M0FNU, {0, -1, 1.25f, 1.5f, 3, 0x1.8p-126f, 0x1p-128f, 0x1.98p127f, kInf, kNan}),
              ElementsAre(0, 127, 127, 128, 129, 2, 0, 255, 255, 255));
}

// All signs, exponents and the first 11 bits of mantissas, exactly and just above; FNV-1a over their codes.
uint64_t DigestOfCodes(DType dtype) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const uint32_t rest : {0u, 1u}) {
    for (uint32_t high = 0; high < 1u << 20; ++high) {
      const auto value = std::bit_cast<float>(high << 12 | rest);
      uint8_t code = 0;
      Float32ToRareFloats(&value, dtype, &code, 1);
      digest = (digest ^ code) * 0x100000001b3;
    }
  }
  return digest;
}

TEST(RareFloatsTest, TwoMillionNumbersConvertAsInPyTorch) {
  EXPECT_EQ(DigestOfCodes(DType::kFloat8E4M3FNUZ), 0xe3d37c8b0853a3a5);
  EXPECT_EQ(DigestOfCodes(DType::kFloat8E5M2FNUZ), 0x67d8410f9854dba5);
  EXPECT_EQ(DigestOfCodes(DType::kFloat8E8M0FNU), 0x40e4b8b93dfacb25);
}

}  // namespace
}  // namespace fsdp
