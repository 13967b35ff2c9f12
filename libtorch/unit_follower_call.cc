// SPDX-License-Identifier: Apache-2.0
//
// The casts of UnitFollower at the borders of units: at CallUnit, or else at operators.
#include <algorithm>

#include "fsdp/fsdp/units/unit.h"
#include "fsdp/libtorch/unit_follower.h"

namespace fsdp {

// Units that cast their inputs do so at the operators that use their parameters, unless a CallUnit has done it before.
void UnitFollower::AddCasts(const MirrorModule& mirror) {
  auto buffers = std::make_shared<OperandCasts::Tensors>();
  for (const MirroredBuffer& buffer : mirror.mirrored_buffers()) buffers->insert(buffer.tensor.unsafeGetTensorImpl());
  for (Node& node : nodes_) {
    if (node.unit < 0) continue;
    const Unit& unit = model_->units().unit(node.unit);
    node.border = UnitBorder::Of(unit.settings, unit.compute_dtype);
    if (node.border.input_type.has_value()) {
      node.casts.emplace(*node.border.input_type, node.border.restores, buffers);
    }
  }
  // The root need not be a unit: its policy is then kept as a bare module's.
  for (const BareModule& bare : model_->units().bare_modules()) {
    if (nodes_[0].unit >= 0 || bare.modules[0] != nodes_[0].modules[0]) continue;
    nodes_[0].border = UnitBorder::Of(bare.settings, bare.settings.param_dtype.value_or(DType::kFloat32));
  }
}

OperandCasts* UnitFollower::casts(int index) {
  Node& node = nodes_[node_of_unit_[leaves_->leaves()[index].unit]];
  return node.casts.has_value() && node.border.InputType(training_).has_value() ? &*node.casts : nullptr;
}

std::unique_ptr<OperandCastScope> UnitFollower::CastOperands() const {
  const bool any = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.casts.has_value(); });
  return any ? std::make_unique<OperandCastScope>() : nullptr;
}

void UnitFollower::BeginCall(int node) {
  ++nodes_[node].calls;
  if (pass_ == Pass::kForward) {
    // On another thread the first use of a parameter is refused, with a message that explains it.
    if (forward_thread_.load() == std::this_thread::get_id()) Enter(node, /*for_gradients=*/false);
    return;
  }
  // The unit's own second run. Units inside it are entered only for reading, and then again for their gradients.
  if (pass_ == Pass::kBackward && at::GradMode::is_enabled() && nodes_[node].border.recomputes) {
    Enter(node, /*for_gradients=*/nodes_[node].visits <= 1);
  }
}

void UnitFollower::LeaveCalled(int node) {
  // An outer call of the same module is still running, or the unit has modules that have not run.
  if (pass_ != Pass::kForward || nodes_[node].modules.size() > 1 || nodes_[node].calls > 1) return;
  if (forward_thread_.load() != std::this_thread::get_id()) return;
  const auto is_open = [&] {
    return std::any_of(open_.begin(), open_.end(), [node](const Open& open) { return open.node == node; });
  };
  // Units inside it are open above it and end first.
  while (is_open()) Leave();
}

void UnitFollower::EndCall(int node) { --nodes_[node].calls; }

void UnitFollower::CheckCalled(int node) const {
  const Node& entered = nodes_[node];
  TORCH_CHECK(node == 0 || entered.calls > 0 || !entered.border.needs_call(), "unit ", entered.name, " has ",
              entered.border.recomputes ? "activation_checkpointing" : "mp_policy.output_dtype",
              ", which a module of LibTorch has only if its parent calls it by CallUnit(child, inputs...): its class "
              "has no hooks");
}

}  // namespace fsdp
