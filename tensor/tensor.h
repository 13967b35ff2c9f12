// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a typed, contiguous, row-major view of a Buffer. A value; copies share the bytes, so a Tensor is passed as a
// reference to memory is. There is no arithmetic on it: kernels live in tensor/ops.h and nn/.
#ifndef FSDP_TENSOR_TENSOR_H_
#define FSDP_TENSOR_TENSOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/device_id.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

class Device;

class Tensor {
 public:
  // Undefined: no dtype, no bytes; defined() is false.
  Tensor() = default;

  // Views the first shape.numel() elements of `buffer`. Precondition: it is large enough. CHECK-fails if it is not.
  Tensor(Buffer buffer, DType dtype, Shape shape);

  // New memory on `device`, contents unspecified. Errors are those of Device::Allocate.
  static absl::StatusOr<Tensor> Empty(Device& device, DType dtype, Shape shape);

  // False for a default-constructed Tensor alone: a tensor of 0 elements is defined.
  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  // The number of elements, from the shape.
  int64_t numel() const { return shape_.numel(); }
  // Bytes of the elements; the buffer may be larger.
  int64_t nbytes() const { return numel() * SizeOf(dtype_); }
  // The device that the bytes lie on.
  const DeviceId& device() const { return buffer_.device(); }
  // A copy of it keeps the bytes alive: work on a stream holds one.
  const Buffer& buffer() const { return buffer_; }

  // The address of element 0, on whatever device the buffer is.
  void* data() const { return buffer_.data(); }

  // The address as T*, to be read or written on the tensor's device alone. Precondition: sizeof(T) == SizeOf(dtype()).
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data());
  }

  // Elements `interval` of the flattened tensor, as a 1-D tensor that shares the bytes. Precondition: inside this
  // tensor. O(1), no copy; CHECK-fails otherwise.
  Tensor Slice(const Interval& interval) const;

  // The same elements in another shape. Precondition: equal numel. O(1), no copy; CHECK-fails otherwise.
  Tensor View(Shape shape) const;

 private:
  Buffer buffer_;
  DType dtype_ = DType::kFloat32;
  Shape shape_ = {0};
  bool defined_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_TENSOR_H_
