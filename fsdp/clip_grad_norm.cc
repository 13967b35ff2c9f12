// SPDX-License-Identifier: Apache-2.0
//
// The norm of a model has parts that different ranks hold: a unit that is sharded is cut over its shard group, a
// parameter that is replicated or ignored is whole on every rank. So gradients are sorted into sets by the group that
// they are cut over, each set is summed locally and all-reduced over its group, and the sums of the sets are added:
//
//   norm^p = sum over sets of ( sum over the set's ranks of |g|^p )      factor = ClipFactor(norm, max_norm)
//
// Every rank makes the same sets in the same order, also for units without gradients here: collectives match up only by
// order. Ranks of tensor parallelism hold different parts of some parameters, which are summed over these ranks as
// well, and copies of the others, which are not. Replicas of a hybrid unit hold equal gradients, so they are not summed
// over.
#include "fsdp/fsdp/clip_grad_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/gradient_kernels.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// Gradients that are cut over the same ranks.
struct GradientSet {
  ProcessGroup* group = nullptr;       // null: every rank has them whole
  ProcessGroup* also = nullptr;        // parts of larger tensors: the ranks of tensor parallelism
  std::vector<LocatedGradient> grads;  // this rank's parts

  void AllReduce(const Tensor& sum, ReduceOp op, Stream& stream) const {
    if (group != nullptr) group->AllReduce(sum, op, stream);
    if (also != nullptr) also->AllReduce(sum, op, stream);
  }
};

// The set of `group`, added if it is new. Sets are in the order of first use, which is the same on all ranks.
GradientSet& SetOf(ProcessGroup* group, ProcessGroup* also, std::vector<GradientSet>& sets) {
  for (GradientSet& set : sets) {
    if (set.group == group && set.also == also) return set;
  }
  sets.push_back({group, also, {}});
  return sets.back();
}

// A set for every shard group of the model, with or without gradients, so that all ranks issue the same reductions.
std::vector<GradientSet> CollectGradients(const ShardedModel& model) {
  std::vector<GradientSet> sets;
  std::set<const Parameter*> known;
  for (const auto& unit : model.units().units()) {
    for (size_t i = 0; i < unit->sharded_parameters.size(); ++i) {
      const auto& parameter = unit->sharded_parameters[i];
      ProcessGroup* also = unit->parameters[i]->part ? unit->groups.tensor_parallel.get() : nullptr;
      GradientSet& set = SetOf(unit->groups.shard.get(), also, sets);
      if (parameter->has_grad && !parameter->interval.empty())
        set.grads.push_back({parameter->grad, parameter->device});
    }
    for (const auto& parameter : unit->parameters) known.insert(parameter.get());
  }
  for (const auto& [name, parameter] : model.module().NamedParameters()) {
    if (!known.insert(parameter.get()).second || !parameter->requires_grad || !parameter->grad.defined()) continue;
    SetOf(nullptr, nullptr, sets).grads.push_back({parameter->grad, &model.stream().device()});
  }
  return sets;
}

// The sum of |x|^p over a set's gradients and ranks; for an infinite p the maximum of |x|. The device has a kernel for
// p = 2 in its own memory; all other gradients are summed on the host, in float64. Both sums are added in one float32
// on the device, so that one all-reduce is enough.
class NormSum {
 public:
  static absl::StatusOr<NormSum> Create(double p, Stream& stream) {
    NormSum sum(p, stream);
    FSDP_ASSIGN_OR_RETURN(sum.on_device_, Tensor::Empty(stream.device(), DType::kFloat32, {1}));
    FSDP_ASSIGN_OR_RETURN(sum.host_, stream.device().AllocatePinned(sizeof(float)));
    return sum;
  }

  absl::StatusOr<float> Of(const GradientSet& set) {
    // The device only has a kernel for p = 2, and only for its own memory.
    double on_host = 0;
    std::vector<Tensor> on_device;
    for (const LocatedGradient& gradient : set.grads) {
      if (HasKernel(gradient)) {
        on_device.push_back(gradient.grad);
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(const double part, SumOnHost(gradient));
      on_host = std::isinf(p_) ? (std::isnan(part) || part > on_host ? part : on_host) : on_host + part;
    }
    *host() = static_cast<float>(on_host);
    stream_.CopyAsync(on_device_.data(), host(), sizeof(float));
    if (!on_device.empty()) {
      stream_.device().ops().AccumulateSquaredNorm(std::move(on_device), on_device_, stream_);
    }
    const ReduceOp op = std::isinf(p_) ? ReduceOp::kMax : ReduceOp::kSum;
    set.AllReduce(on_device_, op, stream_);
    stream_.CopyAsync(host(), on_device_.data(), sizeof(float));
    FSDP_RETURN_IF_ERROR(stream_.Synchronize());
    return *host();
  }

 private:
  NormSum(double p, Stream& stream) : p_(p), stream_(stream) {}

  float* host() const { return reinterpret_cast<float*>(host_.data()); }

  bool HasKernel(const LocatedGradient& gradient) const { return p_ == 2 && gradient.device == &stream_.device(); }

  absl::StatusOr<double> SumOnHost(const LocatedGradient& gradient) {
    const Tensor& grad = gradient.grad;
    FSDP_ASSIGN_OR_RETURN(const Buffer staging, stream_.device().AllocatePinned(grad.nbytes()));
    stream_.CopyAsync(staging.data(), grad.data(), grad.nbytes());
    FSDP_RETURN_IF_ERROR(stream_.Synchronize());
    return PowerSum(Tensor(staging, grad.dtype(), grad.shape()), p_);
  }

  double p_;
  Stream& stream_;
  Tensor on_device_;
  Buffer host_;
};

// True if an optimizer over the units' parameters owns all gradients and all of them are on `device`, so that the
// optimizer can apply the factor itself.
// Otherwise some gradients would have to be scaled here by a factor that the host does not know yet.
bool CanDefer(const UnitStore& units, const std::vector<GradientSet>& sets, const Device& device) {
  size_t of_units = 0, all = 0;
  for (const auto& unit : units.units()) {
    for (const auto& p : unit->sharded_parameters) of_units += p->has_grad && !p->interval.empty() ? 1 : 0;
  }
  for (const GradientSet& set : sets) {
    all += set.grads.size();
    for (const LocatedGradient& gradient : set.grads) {
      if (gradient.device != &device) return false;
    }
  }
  return all == of_units;
}

absl::Status CheckArguments(float max_norm, double norm_type) {
  if (!(max_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("clip_grad_norm: max_norm is ", max_norm, ": expected at least 0, or infinity to clip nothing"));
  }
  if (norm_type > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("clip_grad_norm: norm_type is ", norm_type, ": expected above 0, or infinity"));
}

std::vector<Tensor> TensorsOf(const std::vector<LocatedGradient>& gradients) {
  std::vector<Tensor> tensors;
  for (const LocatedGradient& gradient : gradients) tensors.push_back(gradient.grad);
  return tensors;
}

constexpr int64_t kPiece = 1024;  // elements converted at a time

double AddPiece(const double* values, int64_t n, double p, double sum) {
  for (int64_t i = 0; i < n; ++i) {
    const double magnitude = std::abs(values[i]);
    if (std::isinf(p)) {
      sum = std::isnan(magnitude) || magnitude > sum ? magnitude : sum;  // a NaN stays: nothing is larger than it
    } else {
      sum += p == 1 ? magnitude : p == 2 ? magnitude * magnitude : std::pow(magnitude, p);
    }
  }
  return sum;
}

}  // namespace

absl::StatusOr<float> ClipShardedGradNorm(const ShardedModel& model, float max_norm, double norm_type) {
  FSDP_RETURN_IF_ERROR(CheckArguments(max_norm, norm_type));
  Stream& stream = model.stream();
  const std::vector<GradientSet> sets = CollectGradients(model);
  FSDP_ASSIGN_OR_RETURN(NormSum norm_sum, NormSum::Create(norm_type, stream));
  float total = 0;
  for (const GradientSet& set : sets) {
    FSDP_ASSIGN_OR_RETURN(const float sum, norm_sum.Of(set));
    total = std::isinf(norm_type) ? (std::isnan(sum) ? sum : std::max(total, sum)) : total + sum;
  }
  float norm = total;
  if (norm_type == 2) norm = std::sqrt(total);
  if (norm_type != 1 && norm_type != 2 && !std::isinf(norm_type)) {
    norm = static_cast<float>(std::pow(double{total}, 1 / norm_type));
  }
  const float factor = ClipFactor(norm, max_norm);
  if (factor == 1) return norm;  // NaN is not 1
  std::vector<LocatedGradient> all;
  for (const GradientSet& set : sets) all.insert(all.end(), set.grads.begin(), set.grads.end());
  FSDP_RETURN_IF_ERROR(ScaleGradients(all, factor, stream));
  return norm;
}

// Each set has one element of `squares`, so that sets are reduced over their own groups, and one kernel at the end adds
// the elements and computes norm and coefficient. The sums stay on the device, in stream order.
absl::StatusOr<GradClip> DeferClipShardedGradNorm(const ShardedModel& model, float max_norm) {
  FSDP_RETURN_IF_ERROR(CheckArguments(max_norm, 2));
  Stream& stream = model.stream();
  Device& device = stream.device();
  const TensorOps& ops = device.ops();
  const std::vector<GradientSet> sets = CollectGradients(model);
  if (!CanDefer(model.units(), sets, device)) {
    FSDP_ASSIGN_OR_RETURN(const float norm, ClipShardedGradNorm(model, max_norm, 2));
    return GradClip(norm);
  }
  const auto count = static_cast<int64_t>(sets.size());
  FSDP_ASSIGN_OR_RETURN(const Tensor squares, Tensor::Empty(device, DType::kFloat32, {count}));
  FSDP_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(device, DType::kFloat32, {2}));
  ops.Zero(squares, stream);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor square = squares.Slice({i, i + 1});
    ops.AccumulateSquaredNorm(TensorsOf(sets[i].grads), square, stream);
    sets[i].AllReduce(square, ReduceOp::kSum, stream);
  }
  ops.ClipCoefficient(squares, max_norm, result, stream);
  return GradClip::Read(result, stream);
}

absl::StatusOr<double> PowerSum(const Tensor& t, double p) {
  std::array<double, kPiece> values;
  double sum = 0;
  for (int64_t begin = 0; begin < t.numel(); begin += kPiece) {
    const Tensor piece = t.Slice({begin, std::min(begin + kPiece, t.numel())});
    FSDP_RETURN_IF_ERROR(Convert(t.dtype(), piece.data(), DType::kFloat64, values.data(), piece.numel()));
    sum = AddPiece(values.data(), piece.numel(), p, sum);
  }
  return sum;
}

}  // namespace fsdp
