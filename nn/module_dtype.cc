// SPDX-License-Identifier: Apache-2.0
//
// Module::To: all new memory first, then all changes, so that an error leaves the module as it was.
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// A copy of `source`, which `name` has, in `dtype` on `device`, through host memory: `source` may be on either side.
// Undefined if `source` is. Blocks.
absl::StatusOr<Tensor> Cast(const std::string& name, const Tensor& source, DType dtype, Device& device,
                            Stream& stream) {
  if (!source.defined()) return source;
  FSDP_ASSIGN_OR_RETURN(Tensor cast, Tensor::Empty(device, dtype, source.shape()));
  FSDP_ASSIGN_OR_RETURN(const Buffer before, device.AllocatePinned(source.nbytes()));
  FSDP_ASSIGN_OR_RETURN(const Buffer after, device.AllocatePinned(cast.nbytes()));
  stream.CopyAsync(before.data(), source.data(), source.nbytes());
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  FSDP_RETURN_IF_ERROR(Annotate(Convert(source.dtype(), before.data(), dtype, after.data(), source.numel()), name));
  stream.CopyAsync(cast.data(), after.data(), cast.nbytes());
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  return cast;
}

absl::Status CheckTo(const std::string& name, const Parameter& parameter, DType dtype) {
  if (!parameter.sharded) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Module::To(", std::string(DTypeName(dtype)), "): parameter \"", name, "\" is sharded in ",
                   std::string(DTypeName(parameter.dtype)),
                   ": call it before the module is wrapped or first used, or load its state dict into a model of the "
                   "other dtype"));
}

}  // namespace

absl::Status Module::To(DType dtype, Device& device) {
  if (!IsFloatingPoint(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Module::To(", std::string(DTypeName(dtype)), "): expected a floating-point dtype"));
  }
  const std::vector<NamedParameter> parameters = NamedParameters();
  for (const auto& [name, parameter] : parameters) FSDP_RETURN_IF_ERROR(CheckTo(name, *parameter, dtype));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("to"));
  std::vector<std::function<void()>> changes;
  std::set<const void*> done;  // shared ones appear once for each name
  for (const auto& [name, parameter] : parameters) {
    if (!IsFloatingPoint(parameter->dtype) || !done.insert(parameter.get()).second) continue;
    FSDP_ASSIGN_OR_RETURN(Tensor data, Cast(name, parameter->data, dtype, device, *stream));
    FSDP_ASSIGN_OR_RETURN(Tensor grad, Cast(name, parameter->grad, dtype, device, *stream));
    changes.push_back([parameter = parameter, data, grad, dtype] {
      parameter->dtype = dtype;
      parameter->data = data;
      parameter->grad = grad;
    });
  }
  for (const auto& [name, buffer] : NamedBuffers()) {
    if (!IsFloatingPoint(buffer->dtype) || !done.insert(buffer.get()).second) continue;
    FSDP_ASSIGN_OR_RETURN(Tensor data, Cast(name, buffer->data, dtype, device, *stream));
    changes.push_back([buffer = buffer, data, dtype] {
      buffer->dtype = dtype;
      buffer->data = data;
    });
  }
  for (const auto& change : changes) change();
  return absl::OkStatus();
}

}  // namespace fsdp
