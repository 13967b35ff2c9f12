// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a typed, row-major view of a Buffer. A value; copies share the bytes, so a Tensor is passed like a reference
// to memory. There is no arithmetic on it: kernels are in tensor/ops.h and nn/.
//
// Tensors are contiguous, with one exception: an activation that a matrix product of a GPU wrote (nn/tape.h, EmptyRows)
// may have padding at the end of each row, so that every row begins at an address that wide accesses take. Functions
// that read a tensor as one run of elements refuse such a tensor.
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

  // The same with rows (of the last dimension) `row_stride` elements apart; the elements between them are padding.
  // Precondition: a shape of at least one dimension, a stride of at least its last one, and a buffer for all rows with
  // their padding. CHECK-fails otherwise.
  static Tensor WithPaddedRows(Buffer buffer, DType dtype, Shape shape, int64_t row_stride);

  // New memory on `device`, contents unspecified. Returns the errors of Device::Allocate.
  static absl::StatusOr<Tensor> Empty(Device& device, DType dtype, Shape shape);

  // False only for a default-constructed Tensor: a tensor of 0 elements is defined.
  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  // The number of elements, from the shape.
  int64_t numel() const { return shape_.numel(); }
  // Bytes of the elements, from data() on; the buffer may be larger. Precondition: is_contiguous(). CHECK-fails
  // otherwise, because the caller is about to copy that many bytes.
  int64_t nbytes() const;

  // False if rows have padding between them.
  bool is_contiguous() const { return row_stride_ == kContiguous; }
  // Elements from the beginning of one row of the last dimension to the beginning of the next. Precondition: at least
  // one dimension.
  int64_t row_stride() const { return is_contiguous() ? shape_.dim(shape_.rank() - 1) : row_stride_; }
  // The device that holds the bytes.
  const DeviceId& device() const { return buffer_.device(); }
  // A copy of it keeps the bytes alive: work on a stream holds one.
  const Buffer& buffer() const { return buffer_; }

  // The address of element 0, on whatever device the buffer is.
  void* data() const { return buffer_.data(); }

  // The address as T*, to be read or written only on the tensor's device. Precondition: sizeof(T) == SizeOf(dtype()).
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data());
  }

  // Elements `interval` of the flattened tensor, as a 1-D tensor that shares the bytes. Precondition: inside this
  // tensor, which is contiguous. O(1), no copy; CHECK-fails otherwise.
  Tensor Slice(const Interval& interval) const;

  // The same elements in another shape. Precondition: equal numel, and an equal last dimension if rows have padding.
  // O(1), no copy; CHECK-fails otherwise.
  Tensor View(Shape shape) const;

  // All rows with their padding, [rows, row_stride()], contiguous: for elementwise work that may also run on the
  // padding, whose values are unspecified.
  Tensor WithPadding() const;

 private:
  static constexpr int64_t kContiguous = -1;

  Buffer buffer_;
  DType dtype_ = DType::kFloat32;
  Shape shape_ = {0};
  int64_t row_stride_ = kContiguous;
  bool defined_ = false;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_TENSOR_H_
