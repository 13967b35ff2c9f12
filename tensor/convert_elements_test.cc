// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/convert_elements.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/each_target.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The C++ type that holds the codes of each dtype.
template <typename To, typename From>
std::vector<To> Converted(DType from, const std::vector<From>& values, DType to) {
  EXPECT_EQ(static_cast<int64_t>(sizeof(From)), SizeOf(from));
  EXPECT_EQ(static_cast<int64_t>(sizeof(To)), SizeOf(to));
  std::vector<To> out(values.size());
  EXPECT_OK(Convert(from, values.data(), to, out.data(), static_cast<int64_t>(values.size())));
  return out;
}

std::vector<uint8_t> E4M3FN(const std::vector<float>& values) {
  return Converted<uint8_t>(DType::kFloat32, values, DType::kFloat8E4M3FN);
}
std::vector<uint8_t> E5M2(const std::vector<float>& values) {
  return Converted<uint8_t>(DType::kFloat32, values, DType::kFloat8E5M2);
}
std::vector<uint16_t> BFloat16(const std::vector<float>& values) {
  return Converted<uint16_t>(DType::kFloat32, values, DType::kBFloat16);
}
std::vector<uint16_t> Float16(const std::vector<float>& values) {
  return Converted<uint16_t>(DType::kFloat32, values, DType::kFloat16);
}

TEST(ConvertTest, RoundsTiesToEven) {
  ForEachTarget([] {
    // Halfway between two neighbours, the lower one even, then odd; and one float32 step to each side of halfway.
    EXPECT_THAT(BFloat16({0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, 0x1.00fffep0f}),
                ElementsAre(0x3F80, 0x3F82, 0x3F81, 0x3F80));
    EXPECT_THAT(Float16({0x1.002p0f, 0x1.006p0f, 0x1.002002p0f, 0x1.001ffep0f}),
                ElementsAre(0x3C00, 0x3C02, 0x3C01, 0x3C00));
    EXPECT_THAT(E4M3FN({1.0625f, 1.1875f, 0x1.100002p0f, 0x1.0ffffep0f}), ElementsAre(0x38, 0x3A, 0x39, 0x38));
    EXPECT_THAT(E5M2({1.125f, 1.375f, 0x1.200002p0f, 0x1.1ffffep0f}), ElementsAre(0x3C, 0x3E, 0x3D, 0x3C));
  });
}

TEST(ConvertTest, SubnormalsRoundTiesToEven) {
  ForEachTarget([] {
    // Float16's last place is 2^-24: 0, a tie down to 0, just above it, 1, a tie up to 2, the step to normal numbers.
    EXPECT_THAT(
        Float16({0x1p-26f, 0x1p-25f, 0x1.000002p-25f, 0x1p-24f, 0x1.8p-24f, 0x1.ff8p-15f, 0x1.ffcp-15f, 0x1p-14f}),
        ElementsAre(0, 0, 1, 1, 2, 0x3FF, 0x400, 0x400));
    EXPECT_THAT(Float16({-0x1p-25f, -0x1.000002p-25f, -0.0f, 0x1p-149f}), ElementsAre(0x8000, 0x8001, 0x8000, 0));
    EXPECT_THAT(E4M3FN({0x1p-10f, 0x1.000002p-10f, 0x1p-9f, 0x1.8p-9f, 0x1.cp-7f, 0x1.ep-7f, 0x1p-6f}),
                ElementsAre(0, 1, 1, 2, 7, 8, 8));
    EXPECT_THAT(E5M2({0x1p-17f, 0x1.000002p-17f, 0x1p-16f, 0x1.8p-16f, 0x1.8p-15f, 0x1.cp-15f, 0x1p-14f}),
                ElementsAre(0, 1, 1, 2, 3, 4, 4));
    EXPECT_THAT(BFloat16({0x1p-133f, 0x1p-134f, 0x1.8p-134f, 0x1p-149f}), ElementsAre(1, 0, 1, 0));
  });
}

TEST(ConvertTest, OverflowBecomesInfinityOrTheLargestNumber) {
  ForEachTarget([] {
    EXPECT_THAT(Float16({65504, 65519.996f, 65520, 1e30f, kInf, -kInf}),
                ElementsAre(0x7BFF, 0x7BFF, 0x7C00, 0x7C00, 0x7C00, 0xFC00));
    EXPECT_THAT(BFloat16({0x1.fep127f, 0x1.fefffep127f, 0x1.ffp127f, kInf, -kInf}),
                ElementsAre(0x7F7F, 0x7F7F, 0x7F80, 0x7F80, 0xFF80));
    // float8_e4m3fn has no infinity.
    EXPECT_THAT(E4M3FN({432, 440, 448, 464, 480, 1e30f, kInf, -kInf, -464}),
                ElementsAre(0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0xFE));
    EXPECT_THAT(E5M2({57344, 61439.996f, 61440, 65536, kInf, -kInf}), ElementsAre(0x7B, 0x7B, 0x7C, 0x7C, 0x7C, 0xFC));
  });
}

TEST(ConvertTest, NaNStaysQuietNaN) {
  ForEachTarget([] {
    // The largest and smallest payloads, which rounding would carry into infinity or zero.
    for (uint32_t bits : {0x7FC00000u, 0x7F800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0xFF800001u}) {
      const float nan = std::bit_cast<float>(bits);
      const uint16_t sign = bits >> 31 << 15;
      EXPECT_THAT(BFloat16({nan}), ElementsAre(0x7FC0 | sign));
      EXPECT_THAT(Float16({nan}), ElementsAre(0x7E00 | sign));
      EXPECT_THAT(E4M3FN({nan}), ElementsAre(0x7F | sign >> 8));
      EXPECT_THAT(E5M2({nan}), ElementsAre(0x7F | sign >> 8));
    }
    for (uint16_t code : {0x7F81, 0xFFFF}) {
      const auto wide = Converted<uint32_t, uint16_t>(DType::kBFloat16, {code}, DType::kFloat32);
      EXPECT_EQ(wide[0] & 0x7FC00000, 0x7FC00000);
    }
  });
}

TEST(ConvertTest, Float64RoundsOnceThroughFloat32) {
  ForEachTarget([] {
    // Just above a tie of bfloat16, but on it in float32: PyTorch gives the even neighbour.
    const std::vector<double> values = {0x1.0100000001p0, 1e300, -1e300, 0x1p-150, std::nan("")};
    EXPECT_THAT((Converted<uint16_t>(DType::kFloat64, values, DType::kBFloat16)),
                ElementsAre(0x3F80, 0x7F80, 0xFF80, 0, 0x7FC0));
    const std::vector<float> narrow = Converted<float>(DType::kFloat64, values, DType::kFloat32);
    EXPECT_THAT(narrow, ElementsAre(0x1.01p0f, kInf, -kInf, 0.0f, testing::IsNan()));
    EXPECT_THAT((Converted<double>(DType::kBFloat16, std::vector<uint16_t>{0x3F81, 0x0001, 0xFF80}, DType::kFloat64)),
                ElementsAre(0x1.02p0, 0x1p-133, -INFINITY));
  });
}

// The reference functions, which are written differently from the vectorised code.
TEST(ConvertTest, AllTargetsAgreeWithTheScalarFunctions) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 2039) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  ForEachTarget([&] {
    const std::vector<uint16_t> bf16 = BFloat16(values);
    const std::vector<uint16_t> f16 = Float16(values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(bf16[i], FloatToBFloat16(values[i])) << values[i];
      ASSERT_EQ(f16[i], FloatToFloat16(values[i])) << values[i];
    }
  });
}

TEST(ConvertTest, EveryCodeRoundTrips) {
  std::vector<uint16_t> codes16(1 << 16);
  for (size_t i = 0; i < codes16.size(); ++i) codes16[i] = static_cast<uint16_t>(i);
  std::vector<uint8_t> codes8(1 << 8);
  for (size_t i = 0; i < codes8.size(); ++i) codes8[i] = static_cast<uint8_t>(i);
  const auto check = [](DType dtype, const auto& codes, DType wide) {
    using Code = typename std::decay_t<decltype(codes)>::value_type;
    const auto verify = [&](const auto& values) {
      const std::vector<Code> back = Converted<Code>(wide, values, dtype);
      for (size_t i = 0; i < codes.size(); ++i) {
        if (std::isnan(values[i])) {
          const Code code = back[i];
          EXPECT_TRUE(std::isnan(Converted<float>(dtype, std::vector<Code>{code}, DType::kFloat32)[0]));
        } else {
          ASSERT_EQ(back[i], codes[i]) << DTypeName(dtype);
        }
      }
    };
    if (wide == DType::kFloat32) verify(Converted<float>(dtype, codes, wide));
    if (wide == DType::kFloat64) verify(Converted<double>(dtype, codes, wide));
  };
  ForEachTarget([&] {
    for (DType wide : {DType::kFloat32, DType::kFloat64}) {
      check(DType::kBFloat16, codes16, wide);
      check(DType::kFloat16, codes16, wide);
      check(DType::kFloat8E4M3FN, codes8, wide);
      check(DType::kFloat8E5M2, codes8, wide);
    }
    const std::vector<float> bf16 = Converted<float>(DType::kBFloat16, codes16, DType::kFloat32);
    const std::vector<float> f16 = Converted<float>(DType::kFloat16, codes16, DType::kFloat32);
    for (size_t i = 0; i < codes16.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(BFloat16ToFloat(codes16[i])));
      ASSERT_EQ(std::bit_cast<uint32_t>(f16[i]), std::bit_cast<uint32_t>(Float16ToFloat(codes16[i])));
    }
  });
}

TEST(ConvertTest, Float8CodesHaveTheirOcpValues) {
  ForEachTarget([] {
    const auto e4m3 = Converted<float>(
        DType::kFloat8E4M3FN, std::vector<uint8_t>{0x00, 0x80, 0x01, 0x07, 0x08, 0x38, 0x78, 0x7E, 0xFE, 0x7F, 0xFF},
        DType::kFloat32);
    EXPECT_THAT(e4m3, ElementsAre(0.0f, -0.0f, 0x1p-9f, 0x1.cp-7f, 0x1p-6f, 1.0f, 256.0f, 448.0f, -448.0f,
                                  testing::IsNan(), testing::IsNan()));
    EXPECT_TRUE(std::signbit(e4m3[1]));
    EXPECT_THAT(
        Converted<float>(DType::kFloat8E5M2, std::vector<uint8_t>{0x01, 0x03, 0x04, 0x3C, 0x7B, 0x7C, 0xFC, 0x7D, 0x7F},
                         DType::kFloat32),
        ElementsAre(0x1p-16f, 0x1.8p-15f, 0x1p-14f, 1.0f, 57344.0f, kInf, -kInf, testing::IsNan(), testing::IsNan()));
  });
}

// The contents of tensor/testdata/dtype_conversion.safetensors: float32 values and PyTorch's conversions of them.
class Golden {
 public:
  Golden() {
    std::ifstream file("tensor/testdata/dtype_conversion.safetensors", std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    header_ = nlohmann::json::parse(bytes_.substr(8, header_bytes));
    payload_ = 8 + header_bytes;
  }

  std::string Bytes(const std::string& name) const {
    const auto& offsets = header_.at(name).at("data_offsets");
    const size_t begin = offsets.at(0);
    const size_t end = offsets.at(1);
    return bytes_.substr(payload_ + begin, end - begin);
  }

 private:
  std::string bytes_;
  nlohmann::json header_;
  size_t payload_ = 0;
};

// The float64 values of `codes`, by the widening that EveryCodeRoundTrips and the golden file itself check.
std::vector<double> Widened(DType dtype, const std::string& codes) {
  const int64_t numel = static_cast<int64_t>(codes.size()) / SizeOf(dtype);
  std::vector<double> values(numel);
  EXPECT_OK(Convert(dtype, codes.data(), DType::kFloat64, values.data(), numel));
  return values;
}

TEST(ConvertTest, MatchesPyTorchBitForBit) {
  const Golden golden;
  const std::string source = golden.Bytes("float32");
  const int64_t numel = static_cast<int64_t>(source.size()) / 4;
  ASSERT_EQ(numel, 6033);
  ForEachTarget([&] {
    for (DType dtype : {DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2}) {
      SCOPED_TRACE(DTypeName(dtype));
      const std::string expected = golden.Bytes("to_" + std::string(DTypeName(dtype)));
      const int64_t size = SizeOf(dtype);
      std::string actual(numel * size, '\0');
      ASSERT_OK(Convert(DType::kFloat32, source.data(), dtype, actual.data(), numel));
      const std::vector<double> expected_values = Widened(dtype, expected);
      const std::vector<double> actual_values = Widened(dtype, actual);
      for (int64_t i = 0; i < numel; ++i) {
        if (std::isnan(expected_values[i])) {
          EXPECT_TRUE(std::isnan(actual_values[i])) << i;
        } else {
          EXPECT_EQ(actual.substr(i * size, size), expected.substr(i * size, size)) << i;
        }
      }
    }
  });
}

TEST(ConvertTest, AnyAlignmentAndLengthGivesTheSameElements) {
  constexpr DType kFloats[] = {DType::kFloat64, DType::kFloat32,      DType::kBFloat16,
                               DType::kFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2};
  std::vector<float> values(70);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f - 9;
  ForEachTarget([&] {
    for (DType from : kFloats) {
      std::string source(values.size() * SizeOf(from) + 1, '\0');
      ASSERT_OK(Convert(DType::kFloat32, values.data(), from, source.data() + 1, values.size()));
      for (DType to : kFloats) {
        const int64_t size = SizeOf(to);
        std::string whole(values.size() * size, '\0');
        ASSERT_OK(Convert(from, source.data() + 1, to, whole.data(), values.size()));
        for (int64_t n = 0; n <= 70; ++n) {
          std::string part(n * size + 2, '\x5A');
          ASSERT_OK(Convert(from, source.data() + 1, to, part.data() + 1, n));
          EXPECT_EQ(part.substr(1, n * size), whole.substr(0, n * size));
          EXPECT_EQ(part.front(), '\x5A');
          EXPECT_EQ(part.back(), '\x5A') << "written past the end";
        }
      }
    }
  });
}

TEST(ConvertTest, InPlaceWorksForOneSize) {
  constexpr int64_t kNumel = 5001;
  ForEachTarget([] {
    for (DType from : AllDTypes()) {
      for (DType to : AllDTypes()) {
        if (SizeOf(from) != SizeOf(to) || IsPacked(from) || IsPacked(to)) continue;
        std::vector<int32_t> small(kNumel);
        for (int64_t i = 0; i < kNumel; ++i) small[i] = static_cast<int32_t>(i % 16);
        std::string source(kNumel * SizeOf(from), '\0');
        ASSERT_OK(Convert(DType::kInt32, small.data(), from, source.data(), kNumel));
        std::string expected(source.size(), '\0');
        ASSERT_OK(Convert(from, source.data(), to, expected.data(), kNumel));
        ASSERT_OK(Convert(from, source.data(), to, source.data(), kNumel));
        EXPECT_EQ(source, expected) << DTypeName(from) << " to " << DTypeName(to);
      }
    }
  });
}

TEST(ConvertTest, SmallWholeNumbersSurviveEveryPair) {
  const std::vector<int8_t> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
  const auto numel = static_cast<int64_t>(numbers.size());
  for (DType from : AllDTypes()) {
    for (DType to : AllDTypes()) {
      if (from == DType::kFloat8E8M0FNU || to == DType::kFloat8E8M0FNU) continue;  // has only powers of two
      if (IsPacked(from) || IsPacked(to)) continue;
      std::string a(numel * SizeOf(from), '\0');
      std::string b(numel * SizeOf(to), '\0');
      std::vector<int8_t> back(numbers.size());
      ASSERT_OK(Convert(DType::kInt8, numbers.data(), from, a.data(), numel));
      ASSERT_OK(Convert(from, a.data(), to, b.data(), numel));
      ASSERT_OK(Convert(to, b.data(), DType::kInt8, back.data(), numel));
      const bool as_bool = from == DType::kBool || to == DType::kBool;
      for (int64_t i = 0; i < numel; ++i) {
        EXPECT_EQ(back[i], as_bool ? numbers[i] != 0 : numbers[i]) << DTypeName(from) << " to " << DTypeName(to);
      }
    }
  }
}

TEST(ConvertTest, IntegersWrapModuloTheirSize) {
  EXPECT_THAT((Converted<int8_t>(DType::kInt32, std::vector<int32_t>{127, 128, 300, -1, -129}, DType::kInt8)),
              ElementsAre(127, -128, 44, -1, 127));
  EXPECT_THAT((Converted<uint64_t>(DType::kInt8, std::vector<int8_t>{-1, 5}, DType::kUInt64)),
              ElementsAre(~uint64_t{0}, 5));
  EXPECT_THAT((Converted<int64_t>(DType::kUInt32, std::vector<uint32_t>{0xFFFFFFFF}, DType::kInt64)),
              ElementsAre(0xFFFFFFFF));
}

TEST(ConvertTest, IntegersRoundToFloatsThroughFloat32) {
  EXPECT_THAT((Converted<float>(DType::kInt64, std::vector<int64_t>{16777217, 16777219, -16777217}, DType::kFloat32)),
              ElementsAre(16777216.0f, 16777220.0f, -16777216.0f));
  EXPECT_THAT((Converted<float>(DType::kUInt64, std::vector<uint64_t>{~uint64_t{0}}, DType::kFloat32)),
              ElementsAre(0x1p64f));
  EXPECT_THAT((Converted<double>(DType::kInt64, std::vector<int64_t>{(int64_t{1} << 53) + 1}, DType::kFloat64)),
              ElementsAre(0x1p53));
  EXPECT_THAT((Converted<uint16_t>(DType::kInt32, std::vector<int32_t>{65519, 65520, -70000}, DType::kFloat16)),
              ElementsAre(0x7BFF, 0x7C00, 0xFC00));
}

TEST(ConvertTest, FloatsTruncateTowardsZero) {
  EXPECT_THAT(
      (Converted<int32_t>(DType::kFloat32, std::vector<float>{1.9f, -1.9f, -0.5f, 2147483520.0f, -2147483648.0f},
                          DType::kInt32)),
      ElementsAre(1, -1, 0, 2147483520, std::numeric_limits<int32_t>::min()));
  EXPECT_THAT((Converted<uint8_t>(DType::kFloat64, std::vector<double>{255.999, -0.999}, DType::kUInt8)),
              ElementsAre(255, 0));
  EXPECT_THAT((Converted<int64_t>(DType::kFloat64, std::vector<double>{-0x1p63, 0x1.fffffffffffffp62}, DType::kInt64)),
              ElementsAre(std::numeric_limits<int64_t>::min(), 0x7FFFFFFFFFFFFC00));
  EXPECT_THAT((Converted<uint64_t>(DType::kFloat32, std::vector<float>{0x1.fffffep63f}, DType::kUInt64)),
              ElementsAre(0xFFFFFF0000000000));
}

TEST(ConvertTest, BoolIsWhatIsNotZero) {
  EXPECT_THAT((Converted<uint8_t>(DType::kFloat32, std::vector<float>{0, -0.0f, 0x1p-149f, kNaN, -2}, DType::kBool)),
              ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT((Converted<uint8_t>(DType::kInt64, std::vector<int64_t>{0, 256, -1}, DType::kBool)),
              ElementsAre(0, 1, 1));
  // A byte other than 0 and 1, as a damaged file may hold.
  EXPECT_THAT((Converted<float>(DType::kBool, std::vector<uint8_t>{0, 1, 2}, DType::kFloat32)), ElementsAre(0, 1, 1));
}

TEST(ConvertTest, WhatAnIntegerCannotHoldIsNamed) {
  std::vector<int8_t> out(3000);
  std::vector<float> values(3000, 1.0f);
  const auto convert = [&](DType to) { return Convert(DType::kFloat32, values.data(), to, out.data(), 3000); };
  values[2500] = 128;
  EXPECT_THAT(convert(DType::kInt8), StatusIs(absl::StatusCode::kInvalidArgument,
                                              "element 2500 of 3000: float32 value 128 does not fit in int8"));
  values[2500] = kNaN;
  EXPECT_THAT(convert(DType::kUInt8), StatusIs(absl::StatusCode::kInvalidArgument,
                                               "element 2500 of 3000: float32 value nan does not fit in uint8"));
  values[7] = -1;
  EXPECT_THAT(convert(DType::kUInt8), StatusIs(absl::StatusCode::kInvalidArgument,
                                               "element 7 of 3000: float32 value -1 does not fit in uint8"));
  const double edge = 0x1p63;
  int64_t wide = 0;
  EXPECT_THAT(Convert(DType::kFloat64, &edge, DType::kInt64, &wide, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Convert(DType::kFloat32, values.data(), DType::kInt8, out.data(), -1),
              StatusIs(absl::StatusCode::kInvalidArgument, "cannot convert -1 elements"));
}

TEST(ConvertTest, ComplexNumbersConvertByTheirParts) {
  const std::vector<float> parts = {1, 2, -0.5f, kInf};
  std::vector<double> wide(4);
  ASSERT_OK(Convert(DType::kComplex64, parts.data(), DType::kComplex128, wide.data(), 2));
  EXPECT_THAT(wide, ElementsAre(1, 2, -0.5, kInf));
  std::vector<uint16_t> narrow(4);
  ASSERT_OK(Convert(DType::kComplex128, wide.data(), DType::kComplex32, narrow.data(), 2));
  EXPECT_THAT(narrow, ElementsAre(0x3C00, 0x4000, 0xB800, 0x7C00));
  const std::vector<int16_t> reals = {3, -4};
  ASSERT_OK(Convert(DType::kInt16, reals.data(), DType::kComplex128, wide.data(), 2));
  EXPECT_THAT(wide, ElementsAre(3, 0, -4, 0));
}

TEST(ConvertTest, AnImaginaryPartIsNeverLost) {
  std::vector<float> parts(2 * 3000, 0.0f);
  std::vector<int16_t> out(3000);
  parts[2 * 2500] = 1.5f;
  ASSERT_OK(Convert(DType::kComplex64, parts.data(), DType::kInt16, out.data(), 3000));
  EXPECT_EQ(out[2500], 1);
  parts[2 * 2500 + 1] = 0.25f;
  for (const DType to : {DType::kInt16, DType::kBFloat16}) {
    EXPECT_THAT(
        Convert(DType::kComplex64, parts.data(), to, out.data(), 3000),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "element 2500 of 3000: complex64 value (1.5, 0.25) does not fit in " + std::string(DTypeName(to))));
  }
}

TEST(ConvertTest, APackedDTypeIsConvertedOnlyToItself) {
  const std::string packed = "\x12\xF8";
  std::string out(packed.size() * 16, '\0');
  for (const DType other : AllDTypes()) {
    if (IsPacked(other)) continue;
    for (const bool is_source : {false, true}) {
      EXPECT_THAT(
          Convert(is_source ? DType::kFloat4E2M1FNx2 : other, packed.data(), is_source ? other : DType::kFloat4E2M1FNx2,
                  out.data(), 1),
          StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("of float4_e2m1fn_x2 is two numbers")));
    }
  }
  ASSERT_OK(Convert(DType::kFloat4E2M1FNx2, packed.data(), DType::kFloat4E2M1FNx2, out.data(), 2));
  EXPECT_EQ(out.substr(0, 2), packed);
}

TEST(ConvertTest, APackedElementIsItsLowHalfAndThenItsHighHalf) {
  std::string bytes;
  std::vector<double> expected;
  const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};  // OCP's e2m1
  for (int low = 0; low < 16; ++low) {
    for (int high = 0; high < 16; ++high) {
      bytes += static_cast<char>(high << 4 | low);
      expected.insert(expected.end(), {values[low], values[high]});
    }
  }
  std::vector<double> numbers(512);
  UnpackFloats(DType::kFloat4E2M1FNx2, bytes.data(), numbers.data(), 256);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(numbers[i], expected[i]);
    EXPECT_EQ(std::signbit(numbers[i]), std::signbit(expected[i]));
  }
}

TEST(ConvertTest, NoElementsNeedNoMemory) {
  for (DType from : AllDTypes()) {
    for (DType to : AllDTypes()) EXPECT_OK(Convert(from, nullptr, to, nullptr, 0));
  }
}

}  // namespace
}  // namespace fsdp
