// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

PythonJson Parse(const char* json) { return PythonJson::parse(json); }

TEST(LiteralTensorTest, JsonGivesTheTensorBack) {
  const LiteralTensor tensor = {DType::kInt16, {2}, std::string("\x01\x00\xff\x7f", 4)};
  const PythonJson json = JsonOfTensor(tensor);
  EXPECT_EQ(json.dump(), R"({"__python__":"tensor","dtype":"int16","shape":[2],"hex":"0100ff7f"})");
  const auto back = TensorOfJson(json);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->dtype, tensor.dtype);
  EXPECT_EQ(back->shape, tensor.shape);
  EXPECT_EQ(back->bytes, tensor.bytes);
}

TEST(LiteralTensorTest, AContradictoryLiteralIsNoTensor) {
  for (const char* json : {
           R"({"__python__":"tensor","dtype":"int16","shape":[2],"hex":"0100"})",
           R"({"__python__":"tensor","dtype":"int16","shape":[-1],"hex":""})",
           R"({"__python__":"tensor","dtype":"complex65","shape":[],"hex":"0000000000000000"})",
           R"({"__python__":"tensor","dtype":"int8","shape":[1],"hex":"zz"})",
           R"({"__python__":"tensor","dtype":"int8","shape":[99999999999],"hex":""})",
           R"({"__python__":"tuple","dtype":"int8","shape":[1],"hex":"00"})",
           R"([1])",
       }) {
    EXPECT_FALSE(TensorOfJson(Parse(json))) << json;
  }
}

TEST(LiteralTensorTest, AGroupSaysNumbersAndNotesWhichWereTensors) {
  const PythonJson group =
      Parse(R"({"lr":{"__python__":"tensor","dtype":"float32","shape":[],"hex":"0000003f"},)"
            R"("betas":[0.9,{"__python__":"tensor","dtype":"float64","shape":[],"hex":"000000000000e03f"}],)"
            R"("big":{"__python__":"tensor","dtype":"float32","shape":[],"hex":"0000807f"},"params":["w"]})");
  const PythonJson plain = WithNumbersForTensors(group);
  EXPECT_EQ(plain["lr"], 0.5);
  EXPECT_EQ(plain["betas"], Parse("[0.9,0.5]"));
  EXPECT_EQ(plain["big"], group["big"]);  // infinity, for which JSON has no number
  EXPECT_EQ(plain["__tensors__"], Parse(R"({"lr":"float32","betas.1":"float64"})"));
  EXPECT_EQ(WithTensorsForNumbers(plain), group);
}

TEST(LiteralTensorTest, AGroupWithoutTensorsStaysAsItIs) {
  const PythonJson group = Parse(R"({"lr":0.5,"betas":[0.9,0.95],"params":["a","b"]})");
  EXPECT_EQ(WithNumbersForTensors(group).dump(), group.dump());
  EXPECT_EQ(WithTensorsForNumbers(group).dump(), group.dump());
}

}  // namespace
}  // namespace fsdp
