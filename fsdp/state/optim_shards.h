// SPDX-License-Identifier: Apache-2.0
//
// OptimShards: an optimizer seen unit by unit: the flat shard of each of its states, put together from the slices that
// it keeps by parameter, so that states are gathered as parameters are.
#ifndef FSDP_FSDP_STATE_OPTIM_SHARDS_H_
#define FSDP_FSDP_STATE_OPTIM_SHARDS_H_

#include <cstdint>
#include <map>
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
  // Both must outlive it.
  OptimShards(const UnitStore& units, Optimizer& optimizer);

  // OK when every rank has the same parameters with state, after as many steps, and none lacks a state; else
  // kFailedPrecondition, naming the parameter and the rank. Collective; blocks.
  absl::Status Agree(const AllRanks& ranks) const;

  // Steps of parameter `index` of unit `unit`; 0: it has no state.
  int64_t steps(int unit, size_t index) const;

  // Whether any parameter of unit `unit` has state.
  bool has_state(int unit) const;

  // Gathers one state of a unit; zero where there is no state. Collective.
  absl::Status Gather(int unit, const std::string& state, StateGather& gather) const;

  // The live slice of one state of parameters()[index] of the optimizer; kFailedPrecondition when it is missing.
  absl::StatusOr<Tensor> Slice(size_t index, const std::string& state) const;

  // Parameters of the optimizer that no unit has, by their index there.
  const std::vector<size_t>& unmanaged() const { return unmanaged_; }

  Optimizer& optimizer() const { return optimizer_; }

 private:
  absl::Status CheckStates() const;

  const UnitStore& units_;
  Optimizer& optimizer_;
  std::map<std::string, size_t> index_;  // into the optimizer's parameters, by name
  std::vector<size_t> unmanaged_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_SHARDS_H_
