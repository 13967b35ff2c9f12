// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/use_observer.h"

#include <memory>
#include <string_view>
#include <utility>

#include "fsdp/libtorch/slot_storage.h"

namespace fsdp {
namespace {

// An operator in place writes its first input, and its name ends in "_".
bool IsInPlace(const at::RecordFunction& op) {
  const std::string_view name = op.name();
  return !name.empty() && name.back() == '_';
}

void Note(const at::Tensor& tensor, const at::RecordFunction& op, bool first) {
  const SlotStorage* slot = SlotStorage::Of(tensor);
  if (slot != nullptr && slot->owner() != nullptr) slot->owner()->OnUse(slot->index(), first && IsInPlace(op));
}

void Note(const c10::IValue& value, const at::RecordFunction& op, bool first) {
  if (value.isTensor()) {
    Note(value.toTensor(), op, first);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) Note(tensor, op, first);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) Note(element, op, first);
  }
}

std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& op) {
  // Inputs of an operator are observed before it runs, so OnUse can still gather.
  bool first = true;
  for (const c10::IValue& input : op.inputs()) Note(input, op, std::exchange(first, false));
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
