// SPDX-License-Identifier: Apache-2.0
//
// Values pass through a separate stream in both directions, since TestDevice() may be a GPU, whose memory the host
// cannot read.
#include "fsdp/optim/optimizer_testutil.h"

#include <cstddef>
#include <cstring>
#include <random>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/convert_elements.h"

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

void SetFloats(const Tensor& t, const Floats& values) {
  std::vector<std::byte> bytes(t.nbytes());
  ASSERT_OK(Convert(DType::kFloat32, values.data(), t.dtype(), bytes.data(), t.numel()));
  Copy(t.data(), bytes.data(), t.nbytes());
}

Floats GetFloats(const Tensor& t) {
  Floats values(t.numel());
  std::vector<std::byte> bytes(t.nbytes());
  Copy(bytes.data(), t.data(), t.nbytes());
  EXPECT_OK(Convert(t.dtype(), bytes.data(), DType::kFloat32, values.data(), t.numel()));
  return values;
}

std::unique_ptr<ShardedParameter> MakeParameter(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                DType grad_dtype) {
  return MakeParameterOf(device, fqn, numel, offset, grad_dtype, DType::kFloat32);
}

std::unique_ptr<ShardedParameter> MakeParameterOf(Device& device, const std::string& fqn, int64_t numel, int64_t offset,
                                                  DType grad_dtype, DType dtype) {
  // The interval is neither at the begin nor at the end of the parameter, as a rank's slice usually is.
  auto parameter = std::make_unique<ShardedParameter>();
  parameter->fqn = fqn;
  parameter->shape = {numel + 9};
  parameter->interval = {4, 4 + numel};
  parameter->data = Tensor::Empty(device, dtype, {numel + offset})->Slice({offset, numel + offset});
  parameter->grad = Tensor::Empty(device, grad_dtype, {numel + offset})->Slice({offset, numel + offset});
  parameter->device = &device;
  parameter->has_grad = true;
  return parameter;
}

void SetGrad(const ShardedParameter& parameter, const Floats& values) { SetFloats(parameter.grad, values); }

Floats GradOf(const ShardedParameter& parameter) { return GetFloats(parameter.grad); }

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
