// SPDX-License-Identifier: Apache-2.0
//
// Casts must happen above autograd, so that backward casts gradients back. LibTorch's dispatcher has its autocast keys
// there, one for each kind of device; every tensor has them, and every thread excludes them until it asks for one. The
// key of a kind of device for which LibTorch has no kernels (Graphcore's IPU) is otherwise unused: it gets a fallback
// for all operators, and a scope includes it. Operators outside of a scope do no extra work.
#include "fsdp/libtorch/operand_casts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "fsdp/libtorch/slot_storage.h"

namespace fsdp {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::AutocastIPU;

void SetIncluded(bool included) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, !included);
  c10::impl::tls_set_dispatch_key_included(kKey, included);
}

OperandCasts* CastsOf(const at::Tensor& tensor) {
  const SlotStorage* slot = SlotStorage::Of(tensor);
  return slot == nullptr || slot->owner() == nullptr ? nullptr : slot->owner()->casts(slot->index());
}

// The casts of the first parameter among the operands.
OperandCasts* CastsOf(c10::ArrayRef<c10::IValue> operands) {
  for (const c10::IValue& operand : operands) {
    OperandCasts* casts = nullptr;
    if (operand.isTensor()) {
      casts = CastsOf(operand.toTensor());
    } else if (operand.isList()) {
      casts = CastsOf(operand.toListRef());
    }
    if (casts != nullptr) return casts;
  }
  return nullptr;
}

// The dtype of `operand` before the cast, if it was cast.
std::optional<at::ScalarType> CastOperand(OperandCasts& casts, c10::IValue& operand) {
  std::optional<at::ScalarType> from;
  if (operand.isTensor()) {
    const at::Tensor tensor = operand.toTensor();
    if (!casts.Applies(tensor)) return from;
    from = tensor.scalar_type();
    operand = casts.Cast(tensor);
  } else if (operand.isList() && !operand.toListRef().empty() &&
             std::any_of(operand.toListRef().begin(), operand.toListRef().end(), [&casts](const c10::IValue& element) {
               return element.isTensor() && casts.Applies(element.toTensor());
             })) {
    c10::impl::GenericList list(operand.toList().elementType());
    for (c10::IValue element : operand.toListRef()) {
      const auto of_element = CastOperand(casts, element);
      if (!from.has_value()) from = of_element;
      list.push_back(std::move(element));
    }
    operand = std::move(list);
  }
  return from;
}

void RestoreOutputs(at::ScalarType type, at::ScalarType wanted, size_t count, torch::jit::Stack& stack) {
  for (auto output = stack.end() - static_cast<std::ptrdiff_t>(count); output != stack.end(); ++output) {
    if (output->isTensor() && output->toTensor().defined() && output->toTensor().scalar_type() == type) {
      *output = output->toTensor().to(wanted);
    }
  }
}

void RunWithCasts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  // Operators that this one calls find their operands cast already.
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const auto first = static_cast<std::ptrdiff_t>(stack->size() - arguments.size());
  OperandCasts* casts = CastsOf(c10::ArrayRef<c10::IValue>(stack->data() + first, arguments.size()));
  std::optional<at::ScalarType> from;
  // Pointwise operators promote mixed dtypes themselves.
  if (casts != nullptr && !op.hasTag(at::Tag::pointwise)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* alias = arguments[i].alias_info();
      // An operand that is written keeps its dtype: a cast copy would take the result.
      if (alias != nullptr && alias->isWrite()) continue;
      const auto of_operand = CastOperand(*casts, (*stack)[first + static_cast<std::ptrdiff_t>(i)]);
      if (!from.has_value()) from = of_operand;
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  if (from.has_value() && casts->restores()) {
    RestoreOutputs(casts->type(), *from, op.schema().returns().size(), *stack);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastIPU, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&RunWithCasts>()); }

bool OperandCasts::Applies(const at::Tensor& operand) const {
  return operand.defined() && operand.is_floating_point() && operand.scalar_type() != type_ &&
         SlotStorage::Of(operand) == nullptr && buffers_->count(operand.unsafeGetTensorImpl()) == 0;
}

at::Tensor OperandCasts::Cast(const at::Tensor& operand) {
  // Tensors of inference mode have no version; reading it would throw.
  const int64_t version = operand.is_inference() ? 0 : operand._version();
  const bool recorded = at::GradMode::is_enabled();
  for (Made& made : made_) {
    if (!made.from.is_same(operand)) continue;
    // A cast that was made without autograd, or from older values, must not be reused.
    if (made.version != version || made.recorded != recorded) made = {operand, version, recorded, operand.to(type_)};
    return made.to;
  }
  made_.push_back({operand, version, recorded, operand.to(type_)});
  return made_.back().to;
}

OperandCastScope::OperandCastScope() : before_(c10::impl::tls_is_dispatch_key_included(kKey)) { SetIncluded(true); }

OperandCastScope::~OperandCastScope() { SetIncluded(before_); }

}  // namespace fsdp
