// SPDX-License-Identifier: Apache-2.0
//
// Plan, agree, then change: Plan checks every entry against the optimizer without touching it, the ranks agree on the
// first error, and Run moves the elements. Run follows the reader's order of items and not the optimizer's, because all
// ranks must take part in the same exchanges, even if they drop the result.
//
// A parameter that the state dict does not mention goes back to never having stepped: its states become zero and its
// count 0, as if the optimizer were new.
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/state/optim_param_groups.h"
#include "fsdp/fsdp/state/optim_state.h"
#include "fsdp/fsdp/state/optim_state_key.h"
#include "fsdp/fsdp/state/optim_state_reader.h"
#include "fsdp/optim/parameter_state.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

using Item = OptimStateReader::Item;

// One load, planned against the optimizer before anything is changed.
class OptimLoad {
 public:
  OptimLoad(const OptimStateReader& reader, const UnitStore& units, Optimizer& optimizer)
      : reader_(reader), optimizer_(optimizer), present_(optimizer.parameters().size()) {
    if (reader.param_groups()) groups_.emplace(*reader.param_groups(), optimizer);
    for (size_t i = 0; i < optimizer.parameters().size(); ++i) index_[optimizer.parameters()[i]->fqn] = i;
    for (const auto& [alias, fqn] : units.aliases()) {
      if (const auto found = index_.find(fqn); found != index_.end()) index_.emplace(alias, found->second);
    }
  }

  // Sorts the items by the optimizer's parameters, checking each.
  absl::Status Plan() {
    for (const Item& item : reader_.items()) {
      const auto found = index_.find(item.entry.fqn);
      if (found == index_.end()) {
        if (!groups_ || !groups_->IsOfAnother(item.entry.fqn)) unexpected_.insert(item.entry.fqn);
        continue;
      }
      FSDP_RETURN_IF_ERROR(PlanOne(item, found->second));
    }
    for (size_t i = 0; i < present_.size(); ++i) FSDP_RETURN_IF_ERROR(CheckComplete(i));
    return absl::OkStatus();
  }

  // Names in the state dict that the optimizer does not have.
  std::vector<std::string> unexpected() const { return {unexpected_.begin(), unexpected_.end()}; }

  // Sets the hyperparameters, or changes nothing.
  absl::Status LoadGroups(bool strict) { return groups_ ? groups_->Load(strict, optimizer_) : absl::OkStatus(); }

  // Moves all elements, in the order of the reader's items.
  absl::Status Run(OptimStateReader& reader) {
    for (const Item& item : reader.items()) {
      if (item.entry.state == kOptimStep) continue;
      FSDP_ASSIGN_OR_RETURN(const Tensor slice, DestinationOf(item, reader));
      FSDP_RETURN_IF_ERROR(reader.Read(item, slice));
    }
    FSDP_RETURN_IF_ERROR(reader.FinishReads());
    for (size_t i = 0; i < present_.size(); ++i) {
      const bool has_unknown_steps = !present_[i].has_step && !present_[i].states.empty();
      optimizer_.set_step_count(i, has_unknown_steps ? 1 : present_[i].steps);
      if (present_[i].states.empty()) FSDP_RETURN_IF_ERROR(Forget(i, reader.gather()));
    }
    return absl::OkStatus();
  }

 private:
  struct Present {
    std::set<std::string> states;
    bool has_step = false;
    int64_t steps = 0;  // of "step"
  };

  // State of a parameter that the optimizer does not have is read into temporary memory, since the exchange waits for
  // every rank.
  absl::StatusOr<Tensor> DestinationOf(const Item& item, OptimStateReader& reader) {
    const auto found = index_.find(item.entry.fqn);
    if (found != index_.end()) return optimizer_.State(found->second, item.entry.state, /*create=*/true);
    return Tensor::Empty(reader.gather().device(), item.entry.dtype, {reader.IntervalOf(item).size()});
  }

  absl::Status PlanOne(const Item& item, size_t index) {
    const std::string& state = item.entry.state;
    present_[index].states.insert(state);
    if (state != kOptimStep) {
      FSDP_RETURN_IF_ERROR(optimizer_.State(index, state).status());
      const Shape& whole = optimizer_.parameters()[index]->whole_shape();
      const Shape shape = FactorShape(state, whole).value_or(whole);
      if (item.entry.shape == shape) return reader_.Check(item, optimizer_.parameters()[index]->data.dtype());
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", item.entry.key().ToString(), "\": shape ",
                                                     item.entry.shape.ToString(),
                                                     " in the state dict != ", shape.ToString(), " in the model"));
    }
    FSDP_ASSIGN_OR_RETURN(const double steps, item.entry.Value());
    if (!(steps >= 0) || !std::isfinite(steps)) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer state \"", item.entry.key().ToString(), "\": ", steps, " steps"));
    }
    present_[index].steps = static_cast<int64_t>(steps);
    present_[index].has_step = true;
    return absl::OkStatus();
  }

  // A parameter must have all of its states, or none.
  absl::Status CheckComplete(size_t index) const {
    if (present_[index].states.empty()) return absl::OkStatus();
    std::vector<std::string> missing;
    std::vector<std::string> wanted = optimizer_.StateNamesOf(index);
    if (optimizer_.needs_step()) wanted.push_back(kOptimStep);
    for (const std::string& name : wanted) {
      if (present_[index].states.count(name) == 0) missing.push_back(name);
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("optimizer state of \"", optimizer_.parameters()[index]->fqn,
                                                   "\" lacks ", absl::StrJoin(missing, ", "), " though it has others"));
  }

  // Zeroes the states that earlier steps left for a parameter that the state dict does not mention.
  absl::Status Forget(size_t index, StateGather& gather) {
    for (const std::string& name : optimizer_.StateNamesOf(index)) {
      FSDP_ASSIGN_OR_RETURN(const Tensor slice, optimizer_.State(index, name));
      if (slice.defined()) gather.device().ops().Zero(slice, gather.stream());
    }
    return absl::OkStatus();
  }

  const OptimStateReader& reader_;
  Optimizer& optimizer_;
  std::optional<SavedParamGroups> groups_;
  std::map<std::string, size_t> index_;  // into the optimizer's parameters
  std::vector<Present> present_;         // by parameter of the optimizer
  std::set<std::string> unexpected_;
};

absl::Status CheckExpected(const std::vector<std::string>& unexpected) {
  if (unexpected.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer state of [", absl::StrJoin(unexpected, ", "),
                   "], parameters that the optimizer does not have; a load that is not strict leaves them out"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> LoadOptimState(const UnitStore& units, const StateDict& state,
                                                        StateSource from, bool strict, Optimizer& optimizer) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<OptimStateReader> reader, OptimStateReader::Create(units, state, from));
  const AllRanks& ranks = reader->gather().ranks();
  const bool has_state_dict = from != StateSource::kFullFirst || ranks.rank() == 0;
  absl::Status planned = has_state_dict ? CheckKeyedByName(state, optimizer) : absl::OkStatus();
  OptimLoad load(*reader, units, optimizer);
  if (planned.ok()) planned = load.Plan();
  if (planned.ok() && strict) planned = CheckExpected(load.unexpected());
  FSDP_RETURN_IF_ERROR(from == StateSource::kLocal ? planned : ranks.AllReduceStatus(planned));
  FSDP_RETURN_IF_ERROR(load.LoadGroups(strict));
  FSDP_RETURN_IF_ERROR(load.Run(*reader));
  FSDP_RETURN_IF_ERROR(reader->gather().Synchronize());
  return load.unexpected();
}

}  // namespace fsdp
