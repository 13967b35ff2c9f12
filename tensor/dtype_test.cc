// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/dtype.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(DTypeTest, NamesAreThoseOfPyTorch) {
  std::vector<std::string> names;
  for (DType dtype : AllDTypes()) names.emplace_back(DTypeName(dtype));
  EXPECT_THAT(names, testing::ElementsAre("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2",
                                          "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
                                          "bool", "complex32", "complex64", "complex128", "float8_e4m3fnuz",
                                          "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"));
}

TEST(DTypeTest, NamesParseBack) {
  for (DType dtype : AllDTypes()) EXPECT_THAT(ParseDType(DTypeName(dtype)), IsOkAndHolds(dtype));
}

TEST(DTypeTest, UnknownNamesListTheKnownOnes) {
  for (const std::string bad : {"float31", "", "Float32", "torch.float32", "float32 "}) {
    EXPECT_THAT(
        ParseDType(bad),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "unknown dtype \"" + bad +
                     "\"; known: float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2, int64, "
                     "int32, int16, int8, uint64, uint32, uint16, uint8, bool, complex32, complex64, complex128, "
                     "float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu, float4_e2m1fn_x2"));
  }
}

// The values are in memory shared between ranks that may run different releases.
TEST(DTypeTest, ValuesNeverChange) {
  EXPECT_EQ(static_cast<int>(DType::kFloat64), 0);
  EXPECT_EQ(static_cast<int>(DType::kFloat8E5M2), 5);
  EXPECT_EQ(static_cast<int>(DType::kInt64), 6);
  EXPECT_EQ(static_cast<int>(DType::kUInt64), 10);
  EXPECT_EQ(static_cast<int>(DType::kBool), 14);
  EXPECT_EQ(static_cast<int>(DType::kComplex128), 17);
  EXPECT_EQ(static_cast<int>(DType::kFloat8E8M0FNU), 20);
  EXPECT_EQ(static_cast<int>(DType::kFloat4E2M1FNx2), 21);
  for (size_t i = 0; i < AllDTypes().size(); ++i) EXPECT_EQ(static_cast<size_t>(AllDTypes()[i]), i);
}

TEST(DTypeTest, SizesMatchTheNames) {
  for (DType dtype : AllDTypes()) {
    const std::string name(DTypeName(dtype));
    const int64_t bits = name.find("128") != std::string::npos  ? 128
                         : name.find("64") != std::string::npos ? 64
                         : name.find("32") != std::string::npos ? 32
                         : name.find("16") != std::string::npos ? 16
                                                                : 8;
    EXPECT_EQ(SizeOf(dtype) * 8, bits) << name;
    EXPECT_EQ(IsPacked(dtype), name.find("_x2") != std::string::npos) << name;
    EXPECT_EQ(IsFloatingPoint(dtype), name.find("float") != std::string::npos && !IsPacked(dtype)) << name;
  }
}

TEST(DTypeTest, AComplexElementIsTwoOfItsPart) {
  for (DType dtype : AllDTypes()) {
    const bool is_complex = DTypeName(dtype).substr(0, 7) == "complex";
    EXPECT_EQ(IsComplex(dtype), is_complex) << DTypeName(dtype);
    EXPECT_EQ(SizeOf(dtype), SizeOf(PartOf(dtype)) * (is_complex ? 2 : 1));
    EXPECT_TRUE(!is_complex || IsFloatingPoint(PartOf(dtype)));
  }
}

}  // namespace
}  // namespace fsdp
