// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/unwritten_gradient.h"

#include <cstdint>
#include <vector>

#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// With more places of padding than this, one call that zeroes everything is cheaper than one for each.
constexpr size_t kMaxPaddings = 4;

// The elements of the buffer that belong to no parameter with a written gradient, in order, neighbours joined.
std::vector<Interval> Unwritten(const Unit& unit) {
  std::vector<Interval> unwritten;
  int64_t end = 0;  // of the elements that are decided
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ShardLayout::Entry& entry = unit.grad_layout.parameters()[i];
    if (entry.shape.numel() == 0 || unit.parameters[i]->zero_grad_stream != nullptr) continue;
    if (entry.offset > end) unwritten.push_back({end, entry.offset});
    end = entry.offset + entry.shape.numel();
  }
  if (unit.grad_layout.padded_numel() > end) unwritten.push_back({end, unit.grad_layout.padded_numel()});
  return unwritten;
}

}  // namespace

void BeginGradient(Unit& unit, Stream& stream) {
  ForgetGradient(unit);
  const Tensor& grad = unit.state.gradients.grad;
  if (Unwritten(unit).size() > kMaxPaddings) return stream.device().ops().Zero(grad, stream);
  unit.state.gradients.is_unwritten = true;
  for (const auto& parameter : unit.parameters) parameter->zero_grad_stream = &stream;
}

void ZeroUnwritten(Unit& unit, Stream& stream) {
  if (!unit.state.gradients.is_unwritten) return;
  for (const Interval& interval : Unwritten(unit)) {
    stream.device().ops().Zero(unit.state.gradients.grad.Slice(interval), stream);
  }
  ForgetGradient(unit);
}

void ForgetGradient(Unit& unit) {
  unit.state.gradients.is_unwritten = false;
  for (const auto& parameter : unit.parameters) parameter->zero_grad_stream = nullptr;
}

}  // namespace fsdp
