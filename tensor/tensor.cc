// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/tensor.h"

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

Tensor::Tensor(Buffer buffer, DType dtype, Shape shape)
    : buffer_(std::move(buffer)), dtype_(dtype), shape_(std::move(shape)), defined_(true) {
  Check(nbytes() <= buffer_.nbytes(), "a tensor larger than its buffer");
}

Tensor Tensor::WithPaddedRows(Buffer buffer, DType dtype, Shape shape, int64_t row_stride) {
  Check(shape.rank() > 0 && row_stride >= shape.dim(shape.rank() - 1), "rows that overlap");
  Tensor t;
  t.buffer_ = std::move(buffer);
  t.dtype_ = dtype;
  t.shape_ = std::move(shape);
  t.defined_ = true;
  if (row_stride != t.row_stride()) t.row_stride_ = row_stride;
  Check(t.WithPadding().nbytes() <= t.buffer_.nbytes(), "a tensor larger than its buffer");
  return t;
}

absl::StatusOr<Tensor> Tensor::Empty(Device& device, DType dtype, Shape shape) {
  FSDP_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(shape.numel() * SizeOf(dtype)));
  return Tensor(std::move(buffer), dtype, std::move(shape));
}

int64_t Tensor::nbytes() const {
  Check(is_contiguous(), "the bytes of a tensor with padded rows: copy it with Tape::Contiguous first");
  return numel() * SizeOf(dtype_);
}

// Slices and views never copy: a parameter is a view of its unit's flat buffer, a shard a slice of it.
Tensor Tensor::Slice(const Interval& interval) const {
  Check(defined_, "a slice of an undefined tensor");
  Check(is_contiguous(), "a slice of a tensor with padded rows");
  Check(Interval{0, numel()}.Contains(interval) && interval.begin <= interval.end, "a slice outside its tensor");
  const int64_t size = SizeOf(dtype_);
  return Tensor(buffer_.Slice(interval.begin * size, interval.size() * size), dtype_, {interval.size()});
}

Tensor Tensor::View(Shape shape) const {
  Check(defined_, "a view of an undefined tensor");
  Check(shape.numel() == numel(), "a view with another number of elements");
  if (is_contiguous()) return Tensor(buffer_, dtype_, std::move(shape));
  Check(shape.rank() > 0 && shape.dim(shape.rank() - 1) == shape_.dim(shape_.rank() - 1),
        "a view of padded rows with another last dimension");
  return WithPaddedRows(buffer_, dtype_, std::move(shape), row_stride_);
}

Tensor Tensor::WithPadding() const {
  const int64_t columns = shape_.dim(shape_.rank() - 1);
  const int64_t rows = columns == 0 ? 0 : numel() / columns;
  return Tensor(buffer_, dtype_, {rows, row_stride()});
}

}  // namespace fsdp
