// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/tensor_bridge.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr std::pair<at::ScalarType, DType> kDTypes[] = {
    {at::kDouble, DType::kFloat64},
    {at::kFloat, DType::kFloat32},
    {at::kBFloat16, DType::kBFloat16},
    {at::kHalf, DType::kFloat16},
    {at::kLong, DType::kInt64},
    {at::kInt, DType::kInt32},
    {at::kShort, DType::kInt16},
    {at::kChar, DType::kInt8},
    {at::kByte, DType::kUInt8},
    {at::kBool, DType::kBool},
    {at::kComplexFloat, DType::kComplex64},
    {at::kComplexDouble, DType::kComplex128},
};

absl::StatusOr<DeviceId> DeviceIdOf(const c10::Device& device) {
  if (device.is_cpu()) return DeviceId{};
  if (device.is_cuda()) return DeviceId{DeviceType::kCuda, device.index()};
  return absl::InvalidArgumentError(absl::StrCat("a tensor on ", device.str(), ": expected one on cpu or cuda"));
}

}  // namespace

absl::StatusOr<DType> DTypeOf(at::ScalarType type) {
  for (const auto& [torch, ours] : kDTypes) {
    if (torch == type) return ours;
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype ", c10::toString(type), " of LibTorch is not supported"));
}

at::ScalarType ScalarTypeOf(DType dtype) {
  for (const auto& [torch, ours] : kDTypes) {
    if (ours == dtype) return torch;
  }
  TORCH_CHECK(false, "LibTorch has no dtype ", std::string(DTypeName(dtype)));
}

at::IntArrayRef SizesOf(const Shape& shape) { return {shape.dims().data(), shape.dims().size()}; }

c10::Device TorchDeviceOf(const Device& device) { return c10::Device(device.name()); }

absl::StatusOr<Tensor> ViewOf(const at::Tensor& tensor) {
  // None of these has elements in memory that a Tensor could refer to.
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of layout ", c10::str(tensor.layout()), " on ",
                                                   tensor.device().str(), tensor.is_quantized() ? ", quantized" : "",
                                                   ": expected a dense one with memory"));
  }
  FSDP_ASSIGN_OR_RETURN(const DeviceId device, DeviceIdOf(tensor.device()));
  try {
    // `kept` may be a copy; the Buffer keeps it alive.
    const at::Tensor kept = tensor.detach().contiguous();
    void* const data = kept.data_ptr();  // throws for a parameter that is sharded already
    FSDP_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(kept.scalar_type()));
    FSDP_ASSIGN_OR_RETURN(Shape shape,
                          Shape::Create(absl::Span<const int64_t>(kept.sizes().data(), kept.sizes().size())));
    return Tensor(Buffer(
                      data, static_cast<int64_t>(kept.nbytes()), [kept] {}, device),
                  dtype, std::move(shape));
    // LibTorch throws for a storage without memory, such as a parameter that is sharded already.
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(MessageOf(error));
  }
}

at::Tensor TorchViewOf(const Tensor& tensor, c10::Device device) {
  // The deleter frees nothing itself: dropping its capture releases the memory.
  return at::from_blob(
      tensor.data(), SizesOf(tensor.shape()), [kept = tensor.buffer()](void*) {},
      at::TensorOptions().dtype(ScalarTypeOf(tensor.dtype())).device(device), device);
}

std::string MessageOf(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  // A backtrace is noise in a message that names the parameter.
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

}  // namespace fsdp
