// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/tensor.h"

#include <numeric>

#include "fsdp/base/status_matchers.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(BufferTest, TheLastCopyFrees) {
  char bytes[16];
  int freed = 0;
  Buffer buffer(bytes, sizeof(bytes), [&] { ++freed; });
  Buffer slice = buffer.Slice(4, 8);
  Buffer copy = slice;
  EXPECT_EQ(slice.data(), buffer.data() + 4);
  EXPECT_EQ(slice.nbytes(), 8);
  buffer = Buffer();
  slice = Buffer();
  EXPECT_EQ(freed, 0);
  copy = Buffer();
  EXPECT_EQ(freed, 1);
}

TEST(BufferTest, UnownedMemoryIsLeftAlone) {
  char bytes[16];
  const Buffer buffer = Buffer::Unowned(bytes, sizeof(bytes));
  EXPECT_TRUE(buffer);
  EXPECT_FALSE(Buffer());
  EXPECT_EQ(buffer.Slice(16, 0).nbytes(), 0);
  EXPECT_EQ(Buffer().Slice(0, 0).nbytes(), 0);
}

TEST(BufferDeathTest, SlicesStayInside) {
  char bytes[16];
  const Buffer buffer = Buffer::Unowned(bytes, sizeof(bytes));
  EXPECT_DEATH(buffer.Slice(9, 8), "a slice outside its buffer");
  EXPECT_DEATH(buffer.Slice(-1, 2), "a slice outside its buffer");
  EXPECT_DEATH(buffer.Slice(1, INT64_MAX), "a slice outside its buffer");
}

TEST(TensorTest, TheDefaultIsUndefined) {
  const Tensor t;
  EXPECT_FALSE(t.defined());
  EXPECT_EQ(t.numel(), 0);
  EXPECT_EQ(t.nbytes(), 0);
  EXPECT_EQ(t.data(), nullptr);
}

TEST(TensorTest, SlicesAndViewsShareTheBytes) {
  auto device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device, DType::kInt32, {2, 3}));
  std::iota(t.data_as<int32_t>(), t.data_as<int32_t>() + 6, 0);
  const Tensor slice = t.Slice({2, 5});
  EXPECT_EQ(slice.shape(), Shape({3}));
  EXPECT_EQ(slice.data_as<int32_t>()[0], 2);
  EXPECT_EQ(slice.nbytes(), 12);
  const Tensor view = t.View({3, 2});
  EXPECT_EQ(view.shape(), Shape({3, 2}));
  view.data_as<int32_t>()[5] = 50;
  EXPECT_EQ(t.data_as<int32_t>()[5], 50);
  EXPECT_EQ(t.Slice({6, 6}).numel(), 0);
  EXPECT_EQ(t.Slice({0, 1}).View(Shape()).shape().rank(), 0);
}

TEST(TensorTest, KeepsItsMemoryAlive) {
  auto device = CreateHostDevice();
  Tensor slice;
  {
    ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device, DType::kFloat64, {8}));
    slice = t.Slice({1, 2});
  }
  EXPECT_EQ(device->allocated_bytes(), 64);
  slice = Tensor();
  EXPECT_EQ(device->allocated_bytes(), 0);
}

TEST(TensorTest, AnEmptyTensorIsDefined) {
  auto device = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device, DType::kFloat32, {0, 4}));
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.nbytes(), 0);
  EXPECT_EQ(t.Slice({0, 0}).numel(), 0);
}

TEST(TensorDeathTest, WrongUseIsFatal) {
  char bytes[16];
  const Buffer buffer = Buffer::Unowned(bytes, sizeof(bytes));
  EXPECT_DEATH(Tensor(buffer, DType::kFloat64, {3}), "a tensor larger than its buffer");
  const Tensor t(buffer, DType::kFloat32, {4});
  EXPECT_DEATH(t.Slice({3, 5}), "a slice outside its tensor");
  EXPECT_DEATH(t.Slice({3, 2}), "a slice outside its tensor");
  EXPECT_DEATH(t.View({5}), "a view with another number of elements");
  EXPECT_DEATH(Tensor().Slice({0, 0}), "a slice of an undefined tensor");
}

TEST(TensorTest, PaddedRowsKeepTheirDistanceInViews) {
  char bytes[96];
  const Buffer buffer = Buffer::Unowned(bytes, sizeof(bytes));
  const Tensor t = Tensor::WithPaddedRows(buffer, DType::kFloat32, {2, 3, 3}, 4);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.numel(), 18);
  EXPECT_EQ(t.View({6, 3}).shape(), Shape({6, 3}));
  EXPECT_EQ(t.View({6, 3}).row_stride(), 4);
  EXPECT_TRUE(t.WithPadding().is_contiguous());
  EXPECT_EQ(t.WithPadding().shape(), Shape({6, 4}));
  EXPECT_EQ(t.WithPadding().data(), bytes);
}

TEST(TensorTest, RowsWithoutPaddingAreContiguous) {
  char bytes[32];
  const Buffer buffer = Buffer::Unowned(bytes, sizeof(bytes));
  const Tensor t = Tensor::WithPaddedRows(buffer, DType::kFloat32, {2, 4}, 4);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(t.row_stride(), 4);
  EXPECT_EQ(t.nbytes(), 32);
}

// Each of these would take padding for elements.
TEST(TensorDeathTest, PaddedRowsAreNoRunOfElements) {
  char bytes[32];
  const Buffer buffer = Buffer::Unowned(bytes, sizeof(bytes));
  const Tensor t = Tensor::WithPaddedRows(buffer, DType::kFloat32, {2, 3}, 4);
  EXPECT_DEATH(t.nbytes(), "the bytes of a tensor with padded rows");
  EXPECT_DEATH(t.Slice({0, 2}), "a slice of a tensor with padded rows");
  EXPECT_DEATH(t.View({3, 2}), "a view of padded rows with another last dimension");
  EXPECT_DEATH(Tensor::WithPaddedRows(buffer, DType::kFloat32, {2, 5}, 4), "rows that overlap");
  EXPECT_DEATH(Tensor::WithPaddedRows(buffer, DType::kFloat32, {3, 3}, 4), "a tensor larger than its buffer");
}

}  // namespace
}  // namespace fsdp
