// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/parameter.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

absl::Status NotBound(const Parameter& parameter, const char* what) {
  return absl::FailedPreconditionError(
      absl::StrCat("parameter \"", parameter.fqn, "\" ", parameter.shape.ToString(), ": ", what,
                   " is not bound to memory: it is sharded, or was never materialised"));
}

}  // namespace

absl::StatusOr<Tensor> Parameter::Data() const {
  if (!data.defined()) return NotBound(*this, "data");
  return data;
}

absl::StatusOr<Tensor> Parameter::Grad() {
  Stream* const zeroed_on = zero_grad_stream;
  FSDP_RETURN_IF_ERROR(GradToWrite().status());
  if (zeroed_on != nullptr) zeroed_on->device().ops().Zero(grad, *zeroed_on);
  return grad;
}

absl::StatusOr<ParameterGrad> Parameter::GradToWrite() {
  if (!grad.defined() && !requires_grad) {
    return absl::FailedPreconditionError(absl::StrCat("parameter \"", fqn, "\" ", shape.ToString(),
                                                      ": it does not require a gradient and has no memory for one: a "
                                                      "backward asks requires_grad first"));
  }
  if (!grad.defined()) return NotBound(*this, "grad");
  grad_used = true;
  return ParameterGrad(grad, /*accumulates=*/std::exchange(zero_grad_stream, nullptr) == nullptr);
}

void Parameter::FillInitial(uint64_t seed, const Interval& interval, float* out) const {
  if (!part) return initializer.Fill(seed, fqn, interval, out);
  for (const IntervalCopy& run : RunsInWhole(shape, *part, interval)) {
    initializer.Fill(seed, fqn, {run.to, run.to + run.numel}, out + (run.from - interval.begin));
  }
}

// The values are drawn as float32 on the host and rounded once to the parameter's dtype, whatever the device, so that a
// run on a GPU starts from the bits of a run on a CPU.
absl::Status MaterializeParameter(Parameter& parameter, Device& device, uint64_t seed, Stream& stream) {
  FSDP_ASSIGN_OR_RETURN(parameter.data, Tensor::Empty(device, parameter.dtype, parameter.shape));
  FSDP_ASSIGN_OR_RETURN(parameter.grad, Tensor::Empty(device, parameter.dtype, parameter.shape));
  const int64_t numel = parameter.shape.numel();
  std::vector<float> values(numel);
  parameter.FillInitial(seed, {0, numel}, values.data());
  std::vector<std::byte> bytes(parameter.data.nbytes());
  FSDP_RETURN_IF_ERROR(Convert(DType::kFloat32, values.data(), parameter.dtype, bytes.data(), numel));
  stream.CopyAsync(parameter.data.data(), bytes.data(), parameter.data.nbytes());
  device.ops().Zero(parameter.grad, stream);
  return stream.Synchronize();  // `bytes` must outlive the copy
}

}  // namespace fsdp
