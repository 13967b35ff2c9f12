// SPDX-License-Identifier: Apache-2.0
//
// The memory of a unit's gradients, which follows requires_grad: adapters of a frozen base have gradients of a few
// thousandths of its size. A parameter without a place has an entry of no elements in grad_layout, so that an index is
// always of the unit's parameters.
//
// Rows of any parameters are cut into equal chunks. A flat parameter's trained parts are not: most of them may be in
// one rank's shard. Packed they are summed by an all-reduce, of which each rank keeps its part. That moves twice its
// bytes, and a reduce-scatter of the whole flat parameter once, so they are packed if they are at most half of it.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// Whether the gradient layout of `unit` needs a place for parameter `index`.
bool NeedsPlace(const Unit& unit, size_t index) {
  return unit.parameters[index]->requires_grad || unit.sharded_parameters[index]->has_grad;
}

ShardLayout FlatGradientLayout(const ShardLayout& whole, const std::vector<bool>& places, bool sharded) {
  if (std::find(places.begin(), places.end(), false) == places.end()) return whole;
  ShardLayout packed = whole.Packed(places);
  return !sharded || 2 * packed.padded_numel() <= whole.padded_numel() ? packed : whole;
}

ShardLayout GradientLayoutOf(const Unit& unit, const std::vector<bool>& places) {
  if (unit.layout.is_flat()) return FlatGradientLayout(unit.layout, places, unit.sharded());
  std::vector<ShardLayout::Entry> entries = unit.layout.parameters();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!places[i]) entries[i] = {entries[i].fqn, Shape{0}};
  }
  return ShardLayout(std::move(entries), {.world_size = unit.layout.world_size(), .kind = LayoutKind::kDim0});
}

absl::Status CheckNothingWaits(const Unit& unit) {
  const GradientState& gradients = unit.state.gradients;
  if (!gradients.has_accumulated && !gradients.has_partial) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("unit ", unit.display_name(),
                   ": requires_grad was changed while its gradients of earlier backwards wait for a reduction: change "
                   "it after a backward with synchronisation"));
}

// Nothing is on the streams, so host memory can be copied immediately.
void KeepGradient(const Tensor& before, const Tensor& now, bool on_host, Stream& stream) {
  if (now.numel() == 0) return;
  if (on_host) {
    std::memcpy(now.data(), before.data(), now.nbytes());
  } else {
    stream.CopyAsync(now.data(), before.data(), now.nbytes());
  }
}

}  // namespace

absl::StatusOr<Tensor> Unit::AllocateShard(int64_t numel, DType of_dtype, Device& host) const {
  // A unit that is not sharded has only a replicate group.
  ProcessGroup& group = sharded() ? *groups.shard : *groups.replicate;
  const int64_t nbytes = numel * SizeOf(of_dtype);
  if (!offloaded()) {
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, group.Allocate(nbytes));
    return Tensor(std::move(buffer), of_dtype, {numel});
  }
  FSDP_ASSIGN_OR_RETURN(Buffer buffer,
                        settings.offload->pin_memory ? group.device()->AllocatePinned(nbytes) : host.Allocate(nbytes));
  std::memset(buffer.data(), 0, nbytes);
  return Tensor(std::move(buffer), of_dtype, {numel});
}

bool Unit::GradientsAreLaid() const {
  if (!grad_shard.defined()) return false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (grad_places[i] != NeedsPlace(*this, i)) return false;
  }
  return true;
}

absl::Status Unit::LayGradients(Device& host, Stream& stream) {
  FSDP_RETURN_IF_ERROR(CheckNothingWaits(*this));
  std::vector<bool> places;
  for (size_t i = 0; i < parameters.size(); ++i) places.push_back(NeedsPlace(*this, i));
  ShardLayout laid = GradientLayoutOf(*this, places);
  const int64_t numel = own_part(laid).size();
  FSDP_ASSIGN_OR_RETURN(Tensor whole, AllocateShard(numel, dtype, host));
  const DType kept = sharded() ? compute_dtype : reduce_dtype;
  Tensor low;
  if (settings.keep_low_precision_grads && SizeOf(kept) < SizeOf(dtype)) {
    FSDP_ASSIGN_OR_RETURN(low, AllocateShard(numel, kept, host));
  }
  for (const Tensor& memory : {whole, low}) {
    if (memory.defined() && !offloaded()) stream.device().ops().Zero(memory, stream);
  }
  // The optimizer reads the low-precision gradient, if there is one, instead of grad_shard.
  const Tensor& seen = low.defined() ? low : whole;
  for (size_t i = 0; i < parameters.size(); ++i) {
    ShardedParameter& sharded = *sharded_parameters[i];
    const ShardLayout::Slice slice = laid.ShardSlice(i, groups.shard_rank());
    const Tensor now = seen.Slice({slice.offset_in_shard, slice.end_in_shard()});
    if (sharded.has_grad) KeepGradient(sharded.grad, now, offloaded(), stream);
    sharded.grad = places[i] ? now : Tensor();
  }
  // Before the old memory goes, which the copies read.
  FSDP_RETURN_IF_ERROR(stream.Synchronize());
  grad_layout = std::move(laid);
  grad_places = std::move(places);
  grad_shard = std::move(whole);
  low_precision_grad = std::move(low);
  state.gradients.accumulated = state.gradients.partial = Tensor();
  return absl::OkStatus();
}

}  // namespace fsdp
