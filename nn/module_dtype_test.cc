// SPDX-License-Identifier: Apache-2.0
//
// Module::To: the dtype of parameters and buffers, with memory and without.
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// A linear map, an integer parameter, and a buffer of each kind.
class Mixed final : public Module {
 public:
  Mixed() {
    linear_ = AddChild("linear", std::make_unique<Linear>(3, 5, Initializer::Normal(0, 1)));
    AddParameter("codes", {4}, Initializer::Constant(7))->dtype = DType::kInt32;
    AddBuffer("counts", *Tensor::Empty(*device_, DType::kInt64, {2}));
    const Tensor scale = *Tensor::Empty(*device_, DType::kFloat32, {1});
    *scale.data_as<float>() = 1 + 0x1p-10f;
    AddBuffer("scale", scale, BufferPersistence::kNonPersistent);
  }
  std::string_view type_name() const override { return "Mixed"; }
  Parameter& weight() { return *linear_->own_parameters()[0].second; }

 private:
  std::shared_ptr<Device> device_ = CreateHostDevice();
  Linear* linear_;
};

class ModuleDTypeTest : public testing::Test {
 protected:
  const std::shared_ptr<Device> device_ = CreateHostDevice();
  Mixed module_;
};

TEST_F(ModuleDTypeTest, ToChangesFloatingPointParametersAndBuffersAlone) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kFloat32}) {
    ASSERT_OK(module_.To(dtype, *device_));
    for (const auto& [name, parameter] : module_.NamedParameters()) {
      EXPECT_EQ(parameter->dtype, name == "codes" ? DType::kInt32 : dtype) << name;
      EXPECT_FALSE(parameter->data.defined()) << name;
    }
    for (const auto& [name, buffer] : module_.NamedBuffers()) {
      EXPECT_EQ(buffer->dtype, name == "counts" ? DType::kInt64 : dtype) << name;
      EXPECT_EQ(buffer->data.dtype(), buffer->dtype) << name;
    }
  }
}

TEST_F(ModuleDTypeTest, ToRoundsValuesAndGradientsThatHaveMemory) {
  ASSERT_OK(module_.Materialize(*device_, /*seed=*/3));
  const Tensor before = module_.weight().data;
  module_.weight().grad.data_as<float>()[4] = 0.3f;
  ASSERT_OK(module_.To(DType::kBFloat16, *device_));
  const Tensor &after = module_.weight().data, &grad = module_.weight().grad;
  ASSERT_EQ(after.dtype(), DType::kBFloat16);
  for (int64_t i = 0; i < before.numel(); ++i) {
    EXPECT_EQ(after.data_as<uint16_t>()[i], FloatToBFloat16(before.data_as<float>()[i])) << i;
  }
  ASSERT_EQ(grad.dtype(), DType::kBFloat16);
  EXPECT_EQ(grad.data_as<uint16_t>()[4], FloatToBFloat16(0.3f));
  EXPECT_EQ(module_.own_buffers()[1].second->data.data_as<uint16_t>()[0], FloatToBFloat16(1));
  EXPECT_EQ(module_.own_parameters()[0].second->data.data_as<int32_t>()[0], 7);
}

// The values are those that a module of the other dtype is given.
TEST_F(ModuleDTypeTest, ValuesThatAreDrawnLaterAreTheSameRoundedOnes) {
  Mixed later;
  ASSERT_OK(later.To(DType::kFloat16, *device_));
  for (Mixed* module : {&module_, &later}) {
    module->AssignNames();
    ASSERT_OK(module->Materialize(*device_, /*seed=*/3));
  }
  ASSERT_OK(module_.To(DType::kFloat16, *device_));
  for (int64_t i = 0; i < later.weight().data.numel(); ++i) {
    EXPECT_EQ(later.weight().data.data_as<uint16_t>()[i], module_.weight().data.data_as<uint16_t>()[i]) << i;
  }
}

TEST_F(ModuleDTypeTest, ToRefusesIntegersAndShardedParametersAndChangesNothing) {
  EXPECT_THAT(module_.To(DType::kInt8, *device_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("To(int8): expected a floating-point dtype")));
  module_.own_parameters()[0].second->sharded = true;
  EXPECT_THAT(module_.To(DType::kFloat16, *device_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("parameter \"codes\" is sharded in int32")));
  EXPECT_EQ(module_.weight().dtype, DType::kFloat32);
}

}  // namespace
}  // namespace fsdp
