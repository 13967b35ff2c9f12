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

absl::StatusOr<Tensor> Tensor::Empty(Device& device, DType dtype, Shape shape) {
  FSDP_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(shape.numel() * SizeOf(dtype)));
  return Tensor(std::move(buffer), dtype, std::move(shape));
}

// Slices and views never copy: a parameter is a view of its unit's flat buffer, a shard a slice of it.
Tensor Tensor::Slice(const Interval& interval) const {
  Check(defined_, "a slice of an undefined tensor");
  Check(Interval{0, numel()}.Contains(interval) && interval.begin <= interval.end, "a slice outside its tensor");
  const int64_t size = SizeOf(dtype_);
  return Tensor(buffer_.Slice(interval.begin * size, interval.size() * size), dtype_, {interval.size()});
}

Tensor Tensor::View(Shape shape) const {
  Check(defined_, "a view of an undefined tensor");
  Check(shape.numel() == numel(), "a view with another number of elements");
  return Tensor(buffer_, dtype_, std::move(shape));
}

}  // namespace fsdp
