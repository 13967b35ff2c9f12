// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/float_dtype.h"

#include <string>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(FloatDTypeTest, EveryFloatingPointDTypeHasItsName) {
  for (const DType dtype : AllDTypes()) {
    const std::string name(DTypeName(dtype));
    if (IsFloatingPoint(dtype)) {
      EXPECT_EQ(ParseFloatDType(name).value(), dtype);
      EXPECT_EQ(ParseFloatDType("torch." + name).value(), dtype);
    } else {
      EXPECT_THAT(ParseFloatDType(name), StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(name + ", expected")));
    }
  }
}

TEST(FloatDTypeTest, NamesOfOtherProgramsAreUnderstood) {
  for (const char* name : {"bf16", "BF16", "BFloat16"}) EXPECT_EQ(ParseFloatDType(name).value(), DType::kBFloat16);
  for (const char* name : {"fp16", "half", "F16"}) EXPECT_EQ(ParseFloatDType(name).value(), DType::kFloat16);
  for (const char* name : {"fp32", "float", "F32"}) EXPECT_EQ(ParseFloatDType(name).value(), DType::kFloat32);
  for (const char* name : {"fp64", "double"}) EXPECT_EQ(ParseFloatDType(name).value(), DType::kFloat64);
  for (const char* name : {"F8_E4M3", "fp8_e4m3"}) EXPECT_EQ(ParseFloatDType(name).value(), DType::kFloat8E4M3FN);
  EXPECT_EQ(ParseFloatDType("F8_E5M2").value(), DType::kFloat8E5M2);
}

TEST(FloatDTypeTest, AnErrorListsTheUsualDTypesFirst) {
  EXPECT_THAT(
      ParseFloatDType("fp8"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(StartsWith("fp8, expected a floating-point dtype: float32 (fp32, f32, float), bfloat16 (bf16)"),
                     HasSubstr("float8_e4m3fn (fp8_e4m3"))));
}

TEST(FloatDTypeTest, ANameOfAnyProgramBecomesPyTorchs) {
  EXPECT_EQ(FloatDTypeName("bf16"), "bfloat16");
  EXPECT_EQ(FloatDTypeName("torch.half"), "float16");
  EXPECT_EQ(FloatDTypeName("float8"), "float8");
}

}  // namespace
}  // namespace fsdp
