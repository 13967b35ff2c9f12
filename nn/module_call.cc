// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/module_call.h"

#include <utility>

#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<TensorList> CallForward(Module& module, TensorList inputs, Tape& tape, const ModuleFunction& forward) {
  if (module.hooks() != nullptr) {
    FSDP_RETURN_IF_ERROR(module.hooks()->PreForward(module, absl::MakeSpan(inputs), tape));
  }
  FSDP_ASSIGN_OR_RETURN(TensorList outputs, forward(inputs, tape));
  if (module.hooks() != nullptr) {
    FSDP_RETURN_IF_ERROR(module.hooks()->PostForward(module, absl::MakeSpan(outputs), tape));
  }
  return outputs;
}

absl::StatusOr<TensorList> CallBackward(Module& module, TensorList grad_outputs, Tape& tape,
                                        const ModuleFunction& backward) {
  if (module.hooks() != nullptr) {
    FSDP_RETURN_IF_ERROR(module.hooks()->PreBackward(module, absl::MakeSpan(grad_outputs), tape));
  }
  FSDP_ASSIGN_OR_RETURN(TensorList grad_inputs, backward(grad_outputs, tape));
  if (module.hooks() != nullptr) {
    FSDP_RETURN_IF_ERROR(module.hooks()->PostBackward(module, absl::MakeSpan(grad_inputs), tape));
  }
  return grad_inputs;
}

}  // namespace fsdp
