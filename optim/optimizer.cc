// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer.h"

#include "absl/strings/str_cat.h"

namespace fsdp {

void Optimizer::ZeroGrad() {
  for (ShardedParameter* parameter : parameters_) parameter->has_grad = false;
}

absl::Status CheckUpdatable(const ShardedParameter& parameter) {
  const DType grad = parameter.grad.dtype();
  if (parameter.data.dtype() != DType::kFloat32 || (grad != DType::kFloat32 && grad != DType::kBFloat16)) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.fqn, "\": data ", std::string(DTypeName(parameter.data.dtype())),
                     " and grad ", std::string(DTypeName(grad)), ", wanted float32 and float32 or bfloat16"));
  }
  if (parameter.data.numel() != parameter.interval.size() || parameter.grad.numel() != parameter.interval.size()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameter.fqn, "\": data and grad have ",
                                                   parameter.data.numel(), " and ", parameter.grad.numel(),
                                                   " elements, wanted ", parameter.interval.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
