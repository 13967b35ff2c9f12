// SPDX-License-Identifier: Apache-2.0
//
// OptimizerFixture: parameters on the test's device, with values that are written and read there.
#ifndef FSDP_OPTIM_OPTIMIZER_TESTUTIL_H_
#define FSDP_OPTIM_OPTIMIZER_TESTUTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/nn/device_testutil.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"
#include "gtest/gtest.h"

namespace fsdp {

using Floats = std::vector<float>;

// Normally distributed, the same for the same seed.
Floats Random(size_t n, int seed);

// To or from the device; blocks.
void Copy(void* to, const void* from, int64_t nbytes);

// Whole float32 tensors; block.
void Set(const Tensor& t, const Floats& values);
Floats Get(const Tensor& t);

// A slice of `numel` elements of a parameter of numel + 9, `offset` elements into its memory, so that tests can reach
// addresses that are not aligned for vectors. Values are unspecified, and has_grad is set.
std::unique_ptr<ShardedParameter> MakeParameter(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                DType grad_dtype = DType::kFloat32);

// Likewise, with values of another dtype than float32.
std::unique_ptr<ShardedParameter> MakeParameterOf(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                  DType grad_dtype, DType dtype);

// Whole tensors of any dtype, as float32; block.
void SetFloats(const Tensor& t, const Floats& values);
Floats GetFloats(const Tensor& t);

// The gradient as float32, converted to or from its dtype; block.
void SetGrad(const ShardedParameter& parameter, const Floats& values);
Floats GradOf(const ShardedParameter& parameter);

void ExpectSameBits(const Tensor& t, const Floats& expected);

class OptimizerFixture : public testing::Test {
 protected:
  // A whole parameter, with values and a gradient.
  std::unique_ptr<ShardedParameter> Make(const std::string& fqn, const Shape& shape,
                                         DType dtype = DType::kFloat32) const;

  // On the device, of shape [1].
  Tensor Scalar(float value) const;

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_OPTIMIZER_TESTUTIL_H_
