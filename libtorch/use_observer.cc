// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/use_observer.h"

#include <memory>

#include "fsdp/libtorch/slot_storage.h"

namespace fsdp {
namespace {

void Note(const at::Tensor& tensor) {
  const SlotStorage* slot = SlotStorage::Of(tensor);
  if (slot != nullptr && slot->owner() != nullptr) slot->owner()->OnUse(slot->index());
}

void Note(const c10::IValue& value) {
  if (value.isTensor()) {
    Note(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) Note(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) Note(element);
  }
}

std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& op) {
  for (const c10::IValue& input : op.inputs()) Note(input);
  return nullptr;
}

}  // namespace

UseObserver::UseObserver()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(Start).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}

UseObserver::~UseObserver() {
  if (is_mine()) at::removeCallback(handle_);
}

}  // namespace fsdp
