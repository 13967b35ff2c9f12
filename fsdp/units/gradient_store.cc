// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/gradient_store.h"

#include <algorithm>

namespace fsdp {
namespace {

bool AnyHasGrad(const Unit& unit) {
  const auto& parameters = unit.sharded_parameters;
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p->has_grad; });
}

// The interval of parameter `i` in the shard.
Interval InShard(const Unit& unit, size_t i) {
  const ShardLayout::Slice slice = unit.grad_layout.ShardSlice(i, unit.groups.shard_rank());
  return {slice.offset_in_shard, slice.offset_in_shard + slice.interval.size()};
}

}  // namespace

void GradientStore::Store(const Unit& unit, const Tensor& reduced, double divisor, Stream& stream) {
  const bool accumulate = AnyHasGrad(unit);
  if (unit.offloaded()) {
    StoreOnHost(unit, reduced, divisor, accumulate, stream);
  } else {
    StoreOnDevice(unit, reduced, divisor, accumulate, stream);
  }
}

// Without earlier gradients one kernel divides, casts and stores. With them the sum is made in the original dtype; a
// low-precision copy, which the optimizer reads, is widened before and narrowed after. Slices of parameters without a
// gradient have stale values and are zeroed first.
void GradientStore::StoreOnDevice(const Unit& unit, const Tensor& reduced, double divisor, bool accumulate,
                                  Stream& stream) {
  const Tensor& low = unit.low_precision_grad;
  if (!accumulate) {
    ops_->CastDivide(reduced, low.defined() ? low : unit.grad_shard, divisor, stream);
    return;
  }
  if (low.defined()) ops_->CastDivide(low, unit.grad_shard, 1, stream);
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    if (!unit.sharded_parameters[i]->has_grad) ops_->Zero(unit.grad_shard.Slice(InShard(unit, i)), stream);
  }
  if (divisor != 1) ops_->CastDivide(reduced, reduced, divisor, stream);
  ops_->Accumulate(reduced, unit.grad_shard, stream);
  if (low.defined()) ops_->CastDivide(unit.grad_shard, low, 1, stream);
}

// The gradient shard is in host memory, and kernels add in device memory: earlier gradients are copied to the device,
// added, and copied back. The staging has three parts of one shard each: sum, earlier, and the copy in the dtype of the
// host's. PyTorch's FSDP1 loses earlier gradients here.
void GradientStore::StoreOnHost(const Unit& unit, const Tensor& reduced, double divisor, bool accumulate,
                                Stream& stream) {
  const Tensor& seen = unit.low_precision_grad.defined() ? unit.low_precision_grad : unit.grad_shard;
  const int64_t nbytes = unit.grad_shard.nbytes();
  stream.Wait(staging_free_);
  const Tensor sum(staging_.Slice(0, nbytes), unit.dtype, seen.shape());
  const Tensor earlier(staging_.Slice(nbytes, nbytes), unit.dtype, seen.shape());
  const Tensor travelling(staging_.Slice(2 * nbytes, seen.nbytes()), seen.dtype(), seen.shape());
  ops_->CastDivide(reduced, sum, divisor, stream);
  if (accumulate) {
    stream.CopyAsync(travelling.data(), seen.data(), seen.nbytes());
    ops_->CastDivide(travelling, earlier, 1, stream);
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      if (!unit.sharded_parameters[i]->has_grad) ops_->Zero(earlier.Slice(InShard(unit, i)), stream);
    }
    ops_->Accumulate(earlier, sum, stream);
  }
  ops_->CastDivide(sum, travelling, 1, stream);
  stream.CopyAsync(seen.data(), travelling.data(), seen.nbytes());
  staging_free_ = stream.Record();
}

}  // namespace fsdp
