// SPDX-License-Identifier: Apache-2.0
//
// param_groups of a state dict, as JSON in PyTorch's form:
// [{"params": [names], "lr": 0.001, "betas": [0.9, 0.999], ...}, ...].
// It holds the groups of any number of optimizers, which train different parameters, one optimizer after the other. A
// group's member "optimizer" is the name of its optimizer; the groups of one optimizer may be without it. A state dict
// of one optimizer that was given no name is PyTorch's.
#ifndef FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_
#define FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/optim/optimizer.h"
#include "nlohmann/json.hpp"

namespace fsdp {

// `before` (null: none) with the groups of `optimizer` as they are now: in the place of the groups that it has there,
// which are the groups of a name with its parameters and no others, else at the end. An optimizer that was given no
// name has its former one, or none if the others have names, or else a number. kInvalidArgument names a parameter that
// another optimizer has too, or a name that it has.
absl::StatusOr<std::string> WithParamGroups(const std::string* before, const Optimizer& optimizer);

// What one optimizer loads of a state dict's param_groups.
class SavedParamGroups {
 public:
  // Takes the groups with the name of `optimizer`, or else of the one name under which its parameters are; all groups
  // if these are several names or none. Errors of `text` come from Load.
  SavedParamGroups(const std::string& text, const Optimizer& optimizer);

  // Whether only groups of another optimizer have parameter `fqn`.
  bool IsOfAnother(const std::string& fqn) const { return others_.count(fqn) != 0; }

  // Sets the hyperparameters of `optimizer`; those that a saved group does not mention stay. `strict`: each group takes
  // the values of the saved group with the same index, which must have the same parameters. Otherwise, if groups
  // differ, a group takes the values of the saved groups that have any of its parameters, and keeps its own if there
  // are none. kInvalidArgument, and nothing is changed, if groups do not correspond, naming a parameter, if the values
  // to take are not the same in several groups, and if one is not a number.
  absl::Status Load(bool strict, Optimizer& optimizer) const;

 private:
  using Json = nlohmann::ordered_json;
  using Sources = std::vector<std::vector<const Json*>>;  // by group of the optimizer: the saved groups to read

  absl::StatusOr<Sources> MatchByIndex(const std::vector<ParamGroupState>& mine) const;
  Sources MatchByParameters(const std::vector<ParamGroupState>& mine) const;

  bool is_array_ = false;
  std::vector<Json> groups_;      // of this optimizer
  std::set<std::string> others_;  // parameters
};

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_PARAM_GROUPS_H_
