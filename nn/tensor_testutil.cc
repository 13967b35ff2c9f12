// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/tensor_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>

#include "fsdp/base/check.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/tensor/convert_elements.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr std::byte kGuard{0x5a};

void Copy(void* to, const void* from, int64_t nbytes) {
  // A stream per thread, because the last reference to a tensor may be dropped on any thread.
  thread_local const std::unique_ptr<Stream> stream = *TestDevice()->CreateStream("test tensor");
  stream->CopyAsync(to, from, nbytes);
  Check(stream->Synchronize().ok(), "test tensors can be copied");
}

std::vector<std::byte> BytesOf(const void* data, int64_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  Copy(bytes.data(), data, nbytes);
  return bytes;
}

bool IsGuard(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kGuard; });
}

// `bytes` on the device, `begin` bytes after a cache line, between guards.
Buffer Place(const std::vector<std::byte>& bytes, int64_t begin) {
  const auto nbytes = static_cast<int64_t>(bytes.size());
  const int64_t end = begin + nbytes;
  std::vector<std::byte> guarded(end + kGuardBytes, kGuard);
  std::copy(bytes.begin(), bytes.end(), guarded.begin() + begin);
  const auto total = static_cast<int64_t>(guarded.size());
  absl::StatusOr<Buffer> memory = TestDevice()->Allocate(total);
  Check(memory.ok(), "out of memory");
  Copy(memory->data(), guarded.data(), total);
  // The check holds `memory`, so the guards are freed only after they have been read.
  const auto check = [memory = *memory, begin, end, total] {
    const std::vector<std::byte> now = BytesOf(memory.data(), total);
    EXPECT_TRUE(IsGuard(now.data(), now.data() + begin)) << "a kernel wrote before a tensor";
    EXPECT_TRUE(IsGuard(now.data() + end, now.data() + total)) << "a kernel wrote past a tensor";
  };
  return Buffer(memory->data() + begin, nbytes, check, memory->device());
}

}  // namespace

Tensor TestTensor(DType dtype, const Shape& shape, const Doubles& values, int64_t offset) {
  Check(static_cast<int64_t>(values.size()) == shape.numel(), "values fill the shape");
  std::vector<std::byte> bytes(shape.numel() * SizeOf(dtype));
  Check(Convert(DType::kFloat64, values.data(), dtype, bytes.data(), shape.numel()).ok(), "values are convertible");
  return Tensor(Place(bytes, kGuardBytes + offset * SizeOf(dtype)), dtype, shape);
}

Tensor PaddedTensor(DType dtype, const Shape& shape, const Doubles& values, int64_t row_stride) {
  const int64_t rows = shape.dim(0), columns = shape.dim(1);
  // NaN in the padding makes a kernel that reads it fail.
  Doubles padded(rows * row_stride, std::numeric_limits<double>::quiet_NaN());
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(values.begin() + row * columns, columns, padded.begin() + row * row_stride);
  }
  const Tensor memory = TestTensor(dtype, {rows, row_stride}, padded);
  return Tensor::WithPaddedRows(memory.buffer(), dtype, shape, row_stride);
}

Tensor NanTensor(DType dtype, const Shape& shape, int64_t offset) {
  return TestTensor(dtype, shape, Doubles(shape.numel(), std::numeric_limits<double>::quiet_NaN()), offset);
}

Tensor TokenTensor(const std::vector<int32_t>& tokens, const Shape& shape) {
  return TestTensor(DType::kInt32, shape, Doubles(tokens.begin(), tokens.end()));
}

Doubles ValuesOf(const Tensor& t) {
  if (!t.is_contiguous()) {
    const Doubles padded = ValuesOf(t.WithPadding());
    const int64_t columns = t.shape().dim(t.shape().rank() - 1);
    Doubles values;
    for (auto row = padded.begin(); row != padded.end(); row += t.row_stride()) {
      values.insert(values.end(), row, row + columns);
    }
    return values;
  }
  Doubles values(t.numel());
  const std::vector<std::byte> bytes = BytesOf(t.data(), t.nbytes());
  Check(Convert(t.dtype(), bytes.data(), DType::kFloat64, values.data(), t.numel()).ok(), "values are convertible");
  return values;
}

Doubles RandomValues(DType dtype, int64_t n, int seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Doubles values(n);
  for (double& value : values) value = normal(generator);
  // Rounded to the dtype, so that a reference in float64 starts from the kernel's own inputs.
  return ValuesOf(TestTensor(dtype, {n}, values));
}

void ExpectClose(const Tensor& t, const Doubles& expected, double relative) {
  ASSERT_EQ(t.numel(), static_cast<int64_t>(expected.size()));
  double squares = 0;
  for (const double value : expected) squares += value * value;
  // The root mean square: an element near 0 is a difference of numbers of this size.
  const double size = std::sqrt(squares / std::max<double>(1, static_cast<double>(expected.size())));
  const Doubles actual = ValuesOf(t);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * (std::abs(expected[i]) + size)) << "element " << i;
  }
}

void ExpectSameBytes(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.nbytes(), b.nbytes());
  EXPECT_EQ(BytesOf(a.data(), a.nbytes()), BytesOf(b.data(), b.nbytes()));
}

}  // namespace fsdp
