// SPDX-License-Identifier: Apache-2.0
#include "nn/test_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tensor/convert.h"

namespace fsdp {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr std::byte kGuard{0x5a};

bool IsGuard(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kGuard; });
}

Tensor Allocate(DType dtype, const Shape& shape, int64_t offset) {
  const int64_t nbytes = shape.numel() * SizeOf(dtype);
  const int64_t begin = kGuardBytes + offset * SizeOf(dtype);
  const int64_t end = begin + nbytes;
  const int64_t total = (end + kGuardBytes + 63) / 64 * 64;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, total));
  Check(memory != nullptr, "out of memory");
  std::fill_n(memory, total, kGuard);
  const auto check_and_free = [memory, begin, end, total] {
    EXPECT_TRUE(IsGuard(memory, memory + begin)) << "a kernel wrote before a tensor";
    EXPECT_TRUE(IsGuard(memory + end, memory + total)) << "a kernel wrote past a tensor";
    std::free(memory);
  };
  return Tensor(Buffer(memory + begin, nbytes, check_and_free), dtype, shape);
}

}  // namespace

Tensor TestTensor(DType dtype, const Shape& shape, const Doubles& values, int64_t offset) {
  Check(static_cast<int64_t>(values.size()) == shape.numel(), "values fill the shape");
  const Tensor t = Allocate(dtype, shape, offset);
  Check(Convert(DType::kFloat64, values.data(), dtype, t.data(), t.numel()).ok(), "values are convertible");
  return t;
}

Tensor NanTensor(DType dtype, const Shape& shape, int64_t offset) {
  return TestTensor(dtype, shape, Doubles(shape.numel(), std::numeric_limits<double>::quiet_NaN()), offset);
}

Tensor TokenTensor(const std::vector<int32_t>& tokens, const Shape& shape) {
  return TestTensor(DType::kInt32, shape, Doubles(tokens.begin(), tokens.end()));
}

Doubles ValuesOf(const Tensor& t) {
  Doubles values(t.numel());
  Check(Convert(t.dtype(), t.data(), DType::kFloat64, values.data(), t.numel()).ok(), "values are convertible");
  return values;
}

Doubles RandomValues(DType dtype, int64_t n, int seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Doubles values(n);
  for (double& value : values) value = normal(generator);
  return ValuesOf(TestTensor(dtype, {n}, values));
}

void ExpectClose(const Tensor& t, const Doubles& expected, double relative) {
  ASSERT_EQ(t.numel(), static_cast<int64_t>(expected.size()));
  double squares = 0;
  for (const double value : expected) squares += value * value;
  const double size = std::sqrt(squares / std::max<double>(1, static_cast<double>(expected.size())));
  const Doubles actual = ValuesOf(t);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * (std::abs(expected[i]) + size)) << "element " << i;
  }
}

void ExpectSameBytes(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.nbytes(), b.nbytes());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.nbytes()), 0);
}

}  // namespace fsdp
