// SPDX-License-Identifier: Apache-2.0
//
// OptimizerFixture: parameters on the test's device, with values that are written and read there.
#ifndef FSDP_OPTIM_OPTIMIZER_FIXTURE_H_
#define FSDP_OPTIM_OPTIMIZER_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/nn/test_device.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"
#include "gtest/gtest.h"

namespace fsdp {

using Floats = std::vector<float>;

Floats Random(size_t n, int seed);

// To or from the device.
void Copy(void* to, const void* from, int64_t nbytes);

void Set(const Tensor& t, const Floats& values);
Floats Get(const Tensor& t);

// A slice of a parameter, `offset` elements into its memory.
std::unique_ptr<ShardedParameter> MakeParameter(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                DType grad_dtype = DType::kFloat32);

void SetGrad(const ShardedParameter& parameter, const Floats& values);
Floats GradOf(const ShardedParameter& parameter);

void ExpectSameBits(const Tensor& t, const Floats& expected);

class OptimizerFixture : public testing::Test {
 protected:
  const std::shared_ptr<Device> device_ = TestDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_OPTIMIZER_FIXTURE_H_
