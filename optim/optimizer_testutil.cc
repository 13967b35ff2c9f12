// SPDX-License-Identifier: Apache-2.0
//
// Values pass through a separate stream in both directions, since TestDevice() may be a GPU, whose memory the host
// cannot read.
#include "fsdp/optim/optimizer_testutil.h"

#include <cstddef>
#include <cstring>
#include <random>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/convert.h"

namespace fsdp {

Floats Random(size_t n, int seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

void Copy(void* to, const void* from, int64_t nbytes) {
  const std::unique_ptr<Stream> stream = *TestDevice()->CreateStream("copy");
  stream->CopyAsync(to, from, nbytes);
  ASSERT_OK(stream->Synchronize());
}

void Set(const Tensor& t, const Floats& values) { Copy(t.data(), values.data(), t.nbytes()); }

Floats Get(const Tensor& t) {
  Floats values(t.numel());
  Copy(values.data(), t.data(), t.nbytes());
  return values;
}

std::unique_ptr<ShardedParameter> MakeParameter(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                DType grad_dtype) {
  // The interval is neither at the begin nor at the end of the parameter, as a rank's slice usually is.
  auto parameter = std::make_unique<ShardedParameter>();
  parameter->fqn = fqn;
  parameter->shape = {numel + 9};
  parameter->interval = {4, 4 + numel};
  parameter->data = Tensor::Empty(device, DType::kFloat32, {numel + offset})->Slice({offset, numel + offset});
  parameter->grad = Tensor::Empty(device, grad_dtype, {numel + offset})->Slice({offset, numel + offset});
  parameter->device = &device;
  parameter->has_grad = true;
  return parameter;
}

void SetGrad(const ShardedParameter& parameter, const Floats& values) {
  std::vector<std::byte> bytes(parameter.grad.nbytes());
  ASSERT_OK(Convert(DType::kFloat32, values.data(), parameter.grad.dtype(), bytes.data(), parameter.grad.numel()));
  Copy(parameter.grad.data(), bytes.data(), parameter.grad.nbytes());
}

Floats GradOf(const ShardedParameter& parameter) {
  Floats values(parameter.grad.numel());
  std::vector<std::byte> bytes(parameter.grad.nbytes());
  Copy(bytes.data(), parameter.grad.data(), parameter.grad.nbytes());
  EXPECT_OK(Convert(parameter.grad.dtype(), bytes.data(), DType::kFloat32, values.data(), parameter.grad.numel()));
  return values;
}

void ExpectSameBits(const Tensor& t, const Floats& expected) {
  ASSERT_EQ(t.numel(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(std::memcmp(Get(t).data(), expected.data(), t.nbytes()), 0);
}

std::unique_ptr<ShardedParameter> OptimizerFixture::Make(const std::string& fqn, const Shape& shape,
                                                         DType dtype) const {
  auto parameter = MakeParameter(*device_, fqn, shape.numel(), 3, dtype);
  parameter->shape = shape;
  parameter->interval = {0, shape.numel()};
  Set(parameter->data, Random(shape.numel(), 1));
  SetGrad(*parameter, Random(shape.numel(), 2));
  return parameter;
}

Tensor OptimizerFixture::Scalar(float value) const {
  const Tensor scalar = *Tensor::Empty(*device_, DType::kFloat32, {1});
  Set(scalar, {value});
  return scalar;
}

}  // namespace fsdp
