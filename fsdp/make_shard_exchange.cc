// SPDX-License-Identifier: Apache-2.0
//
// Collectives take memory of the group's device, and the optimizers compute on the host, so numbers are copied there
// and back, also between two places in host memory: they are few next to a step's gradients. All sums of one group are
// one all-reduce. A gather all-gathers slices that are padded to the largest, and then puts them in their places.
#include "fsdp/fsdp/make_shard_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {
namespace {

class UnitShardExchange final : public ShardExchange {
 public:
  explicit UnitShardExchange(const UnitStore& units) : units_(units) {
    for (const auto& unit : units.units()) {
      for (size_t i = 0; i < unit->parameters.size(); ++i) {
        places_[unit->sharded_parameters[i].get()] = {unit.get(), i};
      }
    }
  }

  absl::Status Sum(absl::Span<const ShardedParameter* const> parameters,
                   absl::Span<std::vector<double>> values) override {
    // By group, in the order in which the parameters name them, which is the same on every rank.
    std::vector<std::pair<ProcessGroup*, std::vector<std::vector<double>*>>> by_group;
    for (size_t k = 0; k < parameters.size(); ++k) {
      ProcessGroup* const group = GroupOf(*parameters[k]);
      if (group == nullptr) continue;
      auto found = std::find_if(by_group.begin(), by_group.end(), [&](const auto& g) { return g.first == group; });
      if (found == by_group.end()) found = by_group.emplace(found, group, std::vector<std::vector<double>*>());
      found->second.push_back(&values[k]);
    }
    for (const auto& [group, sums] : by_group) FSDP_RETURN_IF_ERROR(SumIn(*group, sums));
    return absl::OkStatus();
  }

  absl::Status Gather(const ShardedParameter& parameter, const std::vector<float>& slice,
                      std::vector<float>& whole) override {
    whole.resize(parameter.shape.numel());
    ProcessGroup* const group = GroupOf(parameter);
    if (group == nullptr) {
      if (slice.size() != whole.size()) {
        return absl::FailedPreconditionError(absl::StrCat("parameter \"", parameter.fqn,
                                                          "\" is not of this model: its ", slice.size(),
                                                          " elements of ", whole.size(), " cannot be completed"));
      }
      whole = slice;
      return absl::OkStatus();
    }
    const auto& [unit, index] = places_.at(&parameter);
    std::vector<Interval> intervals;
    int64_t largest = 0;
    for (int rank = 0; rank < group->size(); ++rank) {
      intervals.push_back(unit->layout.ShardSlice(index, rank).interval);
      largest = std::max(largest, intervals.back().size());
    }
    std::vector<float> padded(largest * group->size());
    std::copy(slice.begin(), slice.end(), padded.begin() + largest * group->rank());
    FSDP_RETURN_IF_ERROR(AllGather(*group, largest, padded));
    for (int rank = 0; rank < group->size(); ++rank) {
      const auto from = padded.begin() + largest * rank;
      std::copy(from, from + intervals[rank].size(), whole.begin() + intervals[rank].begin);
    }
    return absl::OkStatus();
  }

 private:
  // The ranks that have other slices; null if this rank has all of it.
  ProcessGroup* GroupOf(const ShardedParameter& parameter) const {
    const auto found = places_.find(&parameter);
    return found == places_.end() ? nullptr : found->second.first->groups.shard.get();
  }

  absl::Status SumIn(ProcessGroup& group, const std::vector<std::vector<double>*>& sums) {
    std::vector<double> all;
    for (const std::vector<double>* sum : sums) all.insert(all.end(), sum->begin(), sum->end());
    const auto reduce = [&](const Tensor& t) { group.AllReduce(t, ReduceOp::kSum, *stream_); };
    FSDP_RETURN_IF_ERROR(OnDevice(DType::kFloat64, all.data(), static_cast<int64_t>(all.size()), reduce));
    auto next = all.begin();
    for (std::vector<double>* sum : sums) {
      std::copy(next, next + sum->size(), sum->begin());
      next += static_cast<std::ptrdiff_t>(sum->size());
    }
    return absl::OkStatus();
  }

  // `padded` has `count` elements of each rank.
  absl::Status AllGather(ProcessGroup& group, int64_t count, std::vector<float>& padded) {
    if (count == 0) return absl::OkStatus();
    const Interval own = {count * group.rank(), count * (group.rank() + 1)};
    const auto gather = [&](const Tensor& t) { group.AllGather(t.Slice(own), t, *stream_); };
    return OnDevice(DType::kFloat32, padded.data(), static_cast<int64_t>(padded.size()), gather);
  }

  // Copies the elements to the device, calls `collective` on them, and copies them back. Blocks.
  template <typename F>
  absl::Status OnDevice(DType dtype, void* elements, int64_t count, F collective) {
    Device& device = units_.device();
    if (stream_ == nullptr) {
      FSDP_ASSIGN_OR_RETURN(stream_, device.CreateStream("optimizer exchange"));
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor t, Tensor::Empty(device, dtype, {count}));
    stream_->CopyAsync(t.data(), elements, t.nbytes());
    collective(t);
    stream_->CopyAsync(elements, t.data(), t.nbytes());
    return stream_->Synchronize();
  }

  const UnitStore& units_;
  std::map<const ShardedParameter*, std::pair<const Unit*, size_t>> places_;
  std::unique_ptr<Stream> stream_;  // made by the first use
};

}  // namespace

std::shared_ptr<ShardExchange> MakeShardExchange(const FullyShardedDataParallel& model) {
  return std::make_shared<UnitShardExchange>(ShardedModel::Of(model).units());
}

absl::StatusOr<std::shared_ptr<ShardExchange>> MakeShardExchange(FsdpModule& module) {
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ShardedModel> model, ShardedModel::Of(module));
  return std::make_shared<UnitShardExchange>(model->units());
}

}  // namespace fsdp
