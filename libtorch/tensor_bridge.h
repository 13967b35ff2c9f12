// SPDX-License-Identifier: Apache-2.0
//
// Tensors of LibTorch as ours and back, without a copy.
#ifndef FSDP_LIBTORCH_TENSOR_BRIDGE_H_
#define FSDP_LIBTORCH_TENSOR_BRIDGE_H_

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// kInvalidArgument, naming the type, if DType has no equivalent.
absl::StatusOr<DType> DTypeOf(at::ScalarType type);
at::ScalarType ScalarTypeOf(DType dtype);

at::IntArrayRef SizesOf(const Shape& shape);

// The device of LibTorch for one of ours.
c10::Device TorchDeviceOf(const Device& device);

// The memory of `tensor`, or of a contiguous copy, which it keeps alive. kInvalidArgument for a tensor without dense
// memory, with a dtype that DType does not have, or on a device that is neither the host nor a GPU of CUDA.
absl::StatusOr<Tensor> ViewOf(const at::Tensor& tensor);

// The memory of `tensor`, which it keeps alive, as a tensor of LibTorch of its shape.
at::Tensor TorchViewOf(const Tensor& tensor, c10::Device device);

// The text of an exception of LibTorch, without its backtrace.
std::string MessageOf(const std::exception& error);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_TENSOR_BRIDGE_H_
