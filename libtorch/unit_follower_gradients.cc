// SPDX-License-Identifier: Apache-2.0
//
// Gradients of UnitFollower. AccumulateGrad adds in place if a parameter has a gradient, so before it runs the
// parameter gets its place in the unit's gradient slot as its gradient. The slot holds anything, so the first gradient
// is copied to it, and AccumulateGrad gets none. A unit that ended and gets a late gradient begins again, and its
// reduction adds to the first. In Python's FSDP2, a gradient that an operator computes in a wider dtype than its
// parameter's, as oneDNN's LSTM does, stays wide until it is reduced in that dtype: here memory in the reduce dtype
// then replaces the gradient slot.
#include <algorithm>
#include <utility>
#include <vector>

#include "fsdp/fsdp/units/unit.h"
#include "fsdp/libtorch/unit_follower.h"

namespace fsdp {
namespace {

void ThrowIfError(const absl::Status& status) { TORCH_CHECK(status.ok(), std::string(status.message())); }

}  // namespace

bool UnitFollower::OnAccumulate(int index, const at::Tensor& gradient) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "backward with create_graph of a sharded module is not supported");
  BeginBackward();
  ThrowIfError(streams_.Join());
  const LeafTensors::Leaf& leaf = leaves_->leaves()[index];
  Enter(node_of_unit_[leaf.unit], /*for_gradients=*/true);
  leaf.mirror->grad_used = true;
  const Tensor& slot = leaf.mirror->grad;
  if (!gradient.defined() || !slot.defined()) return false;
  at::DisableRecordFunctionGuard quiet;
  if (gradient.element_size() > SizeOf(slot.dtype())) {
    WaitForLibTorch();
    ThrowIfError(model_->runtime().gradients().Widen(leaf.unit));
    ThrowIfError(streams_.LibTorchAfter());
    leaves_->Follow();
  }
  // The first gradient replaces what the slot's memory holds.
  if (std::exchange(leaf.mirror->zero_grad_stream, nullptr) == nullptr) return false;
  at::NoGradGuard no_grad;
  at::Tensor& bound = leaf.tensor.mutable_grad();
  if (gradient.layout() == at::kStrided) {
    bound.copy_(gradient);
    return true;
  }
  bound.zero_();  // a sparse gradient can only be added
  return false;
}

void UnitFollower::OnAccumulated(int index) {
  states_[index].accumulated = true;
  const int unit = leaves_->leaves()[index].unit;
  const int node = node_of_unit_[unit];
  // The root ends with the backward, and only the unit that computes may end here.
  if (node == 0 || !IsTop(node)) return;
  const std::vector<int>& all = leaves_->of_unit(unit);
  const bool done = std::all_of(all.begin(), all.end(), [this](int i) {
    return states_[i].accumulated || !states_[i].used || states_[i].accumulator == nullptr;
  });
  if (done) Leave();
}

}  // namespace fsdp
