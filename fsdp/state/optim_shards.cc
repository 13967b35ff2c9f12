// SPDX-License-Identifier: Apache-2.0
//
// An optimizer keeps its states by parameter, as slices of the size of this rank's part. To gather a state like a
// parameter, the slices are copied to their places in the gather buffer's own part, which is laid out like the unit's
// shard; places of parameters without state are zero. Ranks may differ in which parameters of a unit they hold elements
// of, so each rank checks its own states, and all compare the step counts, before the first gather.
#include "fsdp/fsdp/state/optim_shards.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/parameter_state.h"
#include "fsdp/tensor/ops.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Steps = std::map<std::string, int64_t>;  // of parameters that have state

// The first difference of rank `rank` from rank 0.
absl::Status Compare(int rank, const Steps& theirs, const Steps& first) {
  const auto differs = [&](const std::string& fqn, const std::string& how) {
    return absl::FailedPreconditionError(absl::StrCat("optimizer state of \"", fqn, "\" ", how));
  };
  for (const auto& [fqn, steps] : first) {
    const auto found = theirs.find(fqn);
    if (found == theirs.end()) return differs(fqn, absl::StrCat("is missing on rank ", rank, ", rank 0 has it"));
    if (found->second != steps) {
      return differs(fqn,
                     absl::StrCat("has taken ", found->second, " steps on rank ", rank, ", ", steps, " on rank 0"));
    }
  }
  for (const auto& [fqn, steps] : theirs) {
    if (first.count(fqn) == 0) return differs(fqn, absl::StrCat("is missing on rank 0, rank ", rank, " has it"));
  }
  return absl::OkStatus();
}

}  // namespace

OptimShards::OptimShards(const UnitStore& units, Optimizer& optimizer) : units_(units), optimizer_(optimizer) {
  std::set<std::string> managed;
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->parameters) managed.insert(parameter->fqn);
  }
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const std::string& fqn = optimizer.parameters()[i]->fqn;
    index_[fqn] = i;
    // A parameter that the program trains outside all units.
    if (managed.count(fqn) == 0) unmanaged_.push_back(i);
  }
}

absl::Status OptimShards::Agree(const AllRanks& ranks, const absl::Status& before) const {
  // Local errors first: if one rank returned early, the others would wait in AllGatherObject.
  FSDP_RETURN_IF_ERROR(ranks.AllReduceStatus(before.ok() ? CheckStates() : before));
  Steps mine;
  for (const auto& [fqn, i] : index_) {
    if (optimizer_.step_count(i) > 0) mine[fqn] = optimizer_.step_count(i);
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.AllGatherObject(nlohmann::json(mine).dump()));
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    // The maps are sorted, so equal state has equal text, and only ranks that differ are parsed.
    if (all[rank] == all[0]) continue;
    const nlohmann::json theirs = nlohmann::json::parse(all[rank], nullptr, /*allow_exceptions=*/false);
    const nlohmann::json first = nlohmann::json::parse(all[0], nullptr, /*allow_exceptions=*/false);
    if (!theirs.is_object() || !first.is_object()) {
      return absl::FailedPreconditionError("ranks must ask for the optimizer's state at the same time");
    }
    FSDP_RETURN_IF_ERROR(Compare(rank, theirs.get<Steps>(), first.get<Steps>()));
  }
  return absl::OkStatus();
}

absl::Status OptimShards::CheckStates() const {
  for (size_t i = 0; i < optimizer_.parameters().size(); ++i) {
    if (optimizer_.step_count(i) == 0) continue;
    for (const std::string& name : optimizer_.StateNamesOf(i)) FSDP_RETURN_IF_ERROR(Slice(i, name).status());
  }
  return absl::OkStatus();
}

int64_t OptimShards::steps(int unit, size_t index) const {
  const auto found = index_.find(units_.unit(unit).parameters[index]->fqn);
  return found == index_.end() ? 0 : optimizer_.step_count(found->second);
}

bool OptimShards::has_state(int unit) const {
  for (size_t i = 0; i < units_.unit(unit).parameters.size(); ++i) {
    if (steps(unit, i) > 0) return true;
  }
  return false;
}

bool OptimShards::has_state(int unit, const std::string& state) const {
  for (size_t i = 0; i < units_.unit(unit).parameters.size(); ++i) {
    if (Has(unit, i, state)) return true;
  }
  return false;
}

bool OptimShards::Has(int unit, size_t index, const std::string& state) const {
  return HasAny(unit, index, state) && !FactorShape(state, units_.unit(unit).parameters[index]->whole_shape());
}

std::optional<Shape> OptimShards::WholeShape(int unit, size_t index, const std::string& state) const {
  if (!HasAny(unit, index, state)) return std::nullopt;
  return FactorShape(state, units_.unit(unit).parameters[index]->whole_shape());
}

absl::StatusOr<Tensor> OptimShards::Whole(int unit, size_t index, const std::string& state) const {
  return Slice(index_.at(units_.unit(unit).parameters[index]->fqn), state);
}

bool OptimShards::HasAny(int unit, size_t index, const std::string& state) const {
  if (steps(unit, index) == 0) return false;
  const std::vector<std::string> names = optimizer_.StateNamesOf(index_.at(units_.unit(unit).parameters[index]->fqn));
  return std::find(names.begin(), names.end(), state) != names.end();
}

absl::StatusOr<Tensor> OptimShards::Slice(size_t index, const std::string& state) const {
  FSDP_ASSIGN_OR_RETURN(const Tensor slice, optimizer_.State(index, state));
  if (slice.defined()) return slice;
  return absl::FailedPreconditionError(absl::StrCat("optimizer state of \"", optimizer_.parameters()[index]->fqn,
                                                    "\" lacks ", state, " after ", optimizer_.step_count(index),
                                                    " steps"));
}

absl::Status OptimShards::Gather(int u, const std::string& state, StateGather& gather) const {
  const Unit& unit = units_.unit(u);
  // OwnPart is this rank's part of the gather buffer, so the all-gather needs no further copy.
  FSDP_ASSIGN_OR_RETURN(const Tensor shard, gather.OwnPart(u, unit.dtype));
  // Padding and parameters without this state are gathered as zeros.
  gather.device().ops().Zero(shard, gather.stream());
  std::vector<TensorCopy> copies;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ShardLayout::Slice slice = unit.layout.ShardSlice(i, unit.groups.shard_rank());
    if (slice.interval.empty() || !Has(u, i, state)) continue;
    FSDP_ASSIGN_OR_RETURN(const Tensor from, Slice(index_.at(unit.parameters[i]->fqn), state));
    const Interval in_shard{slice.offset_in_shard, slice.offset_in_shard + slice.interval.size()};
    copies.push_back({from, shard.Slice(in_shard)});
  }
  FSDP_RETURN_IF_ERROR(gather.CopyAll(copies));
  return gather.GatherOwnPart();
}

}  // namespace fsdp
