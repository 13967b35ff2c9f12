// SPDX-License-Identifier: Apache-2.0
//
// OptimShards: an optimizer's states by unit: the flat shard of each state, joined from the slices that the optimizer
// keeps by parameter, so that states are gathered as parameters are.
#ifndef FSDP_FSDP_STATE_OPTIM_SHARDS_H_
#define FSDP_FSDP_STATE_OPTIM_SHARDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/shard_groups.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/optim/optimizer.h"

namespace fsdp {

class OptimShards {
 public:
  // `units` and `optimizer` must outlive it.
  OptimShards(const UnitStore& units, Optimizer& optimizer);

  // OK if every rank has state for the same parameters, after equal numbers of steps, no state is missing, and every
  // rank's `before` is OK. Otherwise the first error of any `before`, or kFailedPrecondition, naming the parameter and
  // the rank. Collective; blocks.
  absl::Status Agree(const AllRanks& ranks, const absl::Status& before) const;

  // The steps that parameter `index` of unit `unit` has taken; 0: it has no state.
  int64_t steps(int unit, size_t index) const;

  // Whether any parameter of unit `unit` has state, or state `state`; whether parameter `index` of the unit has it, cut
  // like the parameter.
  bool has_state(int unit) const;
  bool has_state(int unit, const std::string& state) const;
  bool Has(int unit, size_t index, const std::string& state) const;

  // The shape of state `state` of parameter `index` if every rank has it whole; nullopt if it is cut or absent.
  std::optional<Shape> WholeShape(int unit, size_t index, const std::string& state) const;

  // Its elements, aliased. Precondition: WholeShape has a value.
  absl::StatusOr<Tensor> Whole(int unit, size_t index, const std::string& state) const;

  // All-gathers one state of a unit into `gather`; elements of parameters without it are zero. Collective.
  absl::Status Gather(int unit, const std::string& state, StateGather& gather) const;

  // The slice of one state of parameters()[index] of the optimizer, aliased; kFailedPrecondition if it is missing.
  absl::StatusOr<Tensor> Slice(size_t index, const std::string& state) const;

  // Parameters of the optimizer that no unit has, by their index there.
  const std::vector<size_t>& unmanaged() const { return unmanaged_; }

  Optimizer& optimizer() const { return optimizer_; }

 private:
  absl::Status CheckStates() const;
  bool HasAny(int unit, size_t index, const std::string& state) const;

  const UnitStore& units_;
  Optimizer& optimizer_;
  std::map<std::string, size_t> index_;  // into the optimizer's parameters, by name
  std::vector<size_t> unmanaged_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_SHARDS_H_
