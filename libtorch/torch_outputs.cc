// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/torch_outputs.h"

namespace fsdp {

void TensorVisitor::operator()(const c10::IValue& value) const {
  // An object of TorchScript may refer to itself: each part is visited once.
  value.visit([this](const c10::IValue& part) {
    if (part.isTensor()) (*this)(part.toTensor());
    return false;  // continue below it
  });
}

}  // namespace fsdp
