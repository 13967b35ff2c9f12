// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/common_values.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"
#include "fsdp/checkpoint/source/step_counter.h"

namespace fsdp {
namespace {

constexpr size_t kMostNamed = 20;  // of values that are left out

// common.pt is a plain dict: arguments, iteration, random states, groups of the optimizer. Objects of classes are named
// and left out, the rest becomes extra values.
class Reader {
 public:
  absl::StatusOr<CommonValues> Read(TorchNode root, const std::vector<std::string>& skipped) {
    Expand(root);
    if (!root.is_branch() || root.is_list) return absl::InvalidArgumentError("it holds no dict");
    FSDP_RETURN_IF_ERROR(root.Consume([&](const std::string& name, TorchNode& member) -> absl::Status {
      if (std::find(skipped.begin(), skipped.end(), name) != skipped.end()) return absl::OkStatus();
      const std::vector<TorchObject> objects = TakeObjects(member);
      for (const TorchObject& object : objects) {
        LeaveOut(absl::StrCat(Quote(object.path.empty() ? name : absl::StrCat(name, ".", object.path)), " (",
                              object.Kind(), ")"));
      }
      const bool is_object = std::any_of(objects.begin(), objects.end(), [](const auto& o) { return o.path.empty(); });
      return is_object ? absl::OkStatus() : Take(name, member);
    }));
    SetStep();
    if (others_ > 0) values_.left_out.push_back(absl::StrCat("and ", others_, " more"));
    return std::move(values_);
  }

 private:
  void LeaveOut(std::string what) {
    values_.left_out.size() < kMostNamed ? values_.left_out.push_back(std::move(what)) : void(++others_);
  }

  absl::Status Take(const std::string& name, const TorchNode& member) {
    if (HoldsTensor(member)) {
      LeaveOut(absl::StrCat(Quote(name), " (tensors outside of the model)"));
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(const PythonJson json, member.ToJson());
    if (name == "iteration" && json.is_number()) values_.iteration = StepOfNumber(json.get<double>());
    if (name == "global_step" && json.is_number()) values_.global_step = StepOfNumber(json.get<double>());
    if (name == "checkpoint_version" && json.is_number()) values_.checkpoint_version = json.get<double>();
    if (name == "optimizer") return TakeOptimizer(json);
    if (name == kNamedGroups && json.is_array()) {
      values_.named_groups = json;
      return absl::OkStatus();
    }
    values_.texts.emplace_back(name, TextOfPython(json));
    return absl::OkStatus();
  }

  // {"optimizer": {"param_groups": [...]}, "param_state_sharding_type": ...}, or such dicts by number.
  absl::Status TakeOptimizer(const PythonJson& json) {
    const std::optional<PythonJson> members = MembersOf(json);
    if (!members) {
      values_.texts.emplace_back("optimizer", TextOfPython(json));
      return absl::OkStatus();
    }
    const bool has_several = std::all_of(members->begin(), members->end(), [](const PythonJson& member) {
      const std::optional<PythonJson> inner = MembersOf(member);
      return inner && (inner->contains("optimizer") || inner->contains("param_state_sharding_type"));
    });
    if (has_several) {
      for (const PythonJson& member : *members) TakeGroups(*MembersOf(member));
    } else {
      TakeGroups(*members);
    }
    values_.texts.emplace_back(kOptimizerCommon, TextOfPython(json));
    return absl::OkStatus();
  }

  void TakeGroups(const PythonJson& optimizer) {
    if (const auto type = optimizer.find("param_state_sharding_type"); type != optimizer.end() && type->is_string()) {
      values_.sharding_type = type->get<std::string>();
    }
    const auto inner = optimizer.find("optimizer");
    const std::optional<PythonJson> members = inner == optimizer.end() ? std::nullopt : MembersOf(*inner);
    if (!members) return;
    if (const auto groups = members->find("param_groups"); groups != members->end() && groups->is_array()) {
      for (const PythonJson& group : *groups) values_.param_groups.push_back(group);
    }
    const auto state = members->find("state");
    const std::optional<PythonJson> of_state = state == members->end() ? std::nullopt : MembersOf(*state);
    if (of_state && of_state->contains("common_step")) AddStep((*of_state)["common_step"]);
  }

  // Several optimizers (of dense and expert parameters) must agree on the step, or it is unknown.
  void AddStep(const PythonJson& step) {
    if (!step.is_number() || !std::isfinite(step.get<double>())) return;
    const auto value = step.get<double>();
    differs_ = differs_ || values_.optimizer_step.value_or(value) != value;
    values_.optimizer_step = value;
  }

  void SetStep() {
    for (const PythonJson& group : values_.param_groups) {
      const std::optional<PythonJson> members = MembersOf(group);
      if (members && members->contains("step")) AddStep((*members)["step"]);
    }
    if (differs_) values_.optimizer_step = std::nullopt;
  }

  CommonValues values_;
  int64_t others_ = 0;  // left out and not named
  bool differs_ = false;
};

}  // namespace

absl::StatusOr<CommonValues> ReadCommonValues(TorchNode root, const std::vector<std::string>& skipped) {
  return Reader().Read(std::move(root), skipped);
}

}  // namespace fsdp
