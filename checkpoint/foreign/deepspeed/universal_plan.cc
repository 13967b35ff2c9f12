// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/universal_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/tensor_name.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

using Entry = StateDict::Entry;
using Section = StateKey::Section;

constexpr char kStep[] = "step";
constexpr char kSuffix[] = ".pt";

const ShardedTensor& TensorOf(const Entry& entry) { return std::get<ShardedTensor>(entry.second); }

// Names for a note: how many there are, and the first.
class Some {
 public:
  void Add(const std::string& name) {
    if (count_++ == 0) first_ = name;
  }

  // Adds `3 tensors, such as "a", are REST` to `notes`, if there are any.
  void AddNote(const std::string& what, const std::string& rest, std::vector<std::string>& notes) const {
    if (count_ == 0) return;
    notes.push_back(absl::StrCat(count_, " ", what, count_ == 1 ? ", " : "s, such as ", Quote(first_),
                                 count_ == 1 ? ", is " : ", are ", rest));
  }

 private:
  size_t count_ = 0;
  std::string first_;
};

// A value of the model with its state, before it is known whether it was trained.
struct Candidate {
  const Entry* model = nullptr;
  const Entry* master = nullptr;
  UniversalParameter parameter;
  bool is_grouped = false;

  bool has_state() const { return master != nullptr || parameter.step != nullptr || !parameter.states.empty(); }
};

class Planner {
 public:
  explicit Planner(const StateDict& contents) : contents_(contents) {}

  absl::StatusOr<UniversalPlan> Plan() {
    FSDP_RETURN_IF_ERROR(AddModel());
    for (const Entry& entry : contents_.entries()) FSDP_RETURN_IF_ERROR(AddState(entry));
    FSDP_RETURN_IF_ERROR(AddGroups());
    FSDP_RETURN_IF_ERROR(CheckStates());
    for (Candidate& candidate : candidates_) FSDP_RETURN_IF_ERROR(Place(candidate));
    FillGroups();
    AddNotes();
    return std::move(plan_);
  }

 private:
  absl::Status AddModel() {
    for (const Entry& entry : contents_.entries()) {
      const StateKey& key = entry.first;
      if (key.section != Section::kModel || !std::holds_alternative<ShardedTensor>(entry.second)) continue;
      index_.emplace(key.fqn, candidates_.size());
      candidates_.emplace_back().model = &entry;
    }
    return absl::OkStatus();
  }

  // The candidate of that name, or that an alias of that name is; null without one.
  Candidate* Find(const std::string& fqn) {
    const std::optional<StateKey> key = contents_.Resolve(StateKey::Model(fqn));
    const auto found = key ? index_.find(key->fqn) : index_.end();
    return found == index_.end() ? nullptr : &candidates_[found->second];
  }

  absl::Status AddState(const Entry& entry) {
    const std::optional<StateName> name = StateOfKey(entry.first);
    if (!name) return absl::OkStatus();
    Candidate* const candidate = Find(std::string(name->fqn));
    if (candidate == nullptr) {
      return Refused(entry.first, "there is no tensor of the model whose state it is: leave it out with --exclude");
    }
    const auto* const text = std::get_if<std::string>(&entry.second);
    if (text != nullptr && name->path == kStep && ScalarOfState(kStep, *text)) {
      candidate->parameter.step = &entry;
      return absl::OkStatus();
    }
    if (text != nullptr) {
      return Refused(entry.first, "it is no tensor, and DeepSpeed's state of a parameter is tensors");
    }
    const ShardedTensor& tensor = TensorOf(entry);
    const ShardedTensor& model = TensorOf(*candidate->model);
    if (name->path == kStep && tensor.shape.rank() == 0) {
      candidate->parameter.step = &entry;
      return absl::OkStatus();
    }
    if (tensor.shape != model.shape) {
      return Refused(entry.first,
                     absl::StrCat("it has the shape ", tensor.shape.ToString(), ", and its parameter ",
                                  model.shape.ToString(), ": DeepSpeed divides state as it divides the parameter"));
    }
    const bool is_master = (name->path == "fp32" || name->path == "param") && tensor.dtype == DType::kFloat32;
    if (is_master) {
      if (candidate->master != nullptr) return Refused(entry.first, "the parameter has two float32 copies");
      candidate->master = &entry;
      return absl::OkStatus();
    }
    FSDP_RETURN_IF_ERROR(CheckIsFileName(entry.first, name->path, sizeof(kSuffix)));
    if (name->path == "fp32") return Refused(entry.first, "fp32.pt is the parameter itself");
    candidate->parameter.states.emplace_back(name->path, &entry);
    return absl::OkStatus();
  }

  absl::Status AddGroups() {
    const std::string* const text = contents_.FindText(StateKey::ParamGroups());
    if (text != nullptr) {
      FSDP_ASSIGN_OR_RETURN(PythonJson groups, TorchParamGroups(*text));
      for (PythonJson& group : groups) FSDP_RETURN_IF_ERROR(AddGroup(group));
    }
    has_state_ =
        std::any_of(candidates_.begin(), candidates_.end(), [](const Candidate& one) { return one.has_state(); });
    for (const Candidate& candidate : candidates_) {
      if (candidate.has_state() && !candidate.is_grouped && text != nullptr) {
        return Refused(candidate.model->first, "it has optimizer state, but is in no group of param_groups");
      }
    }
    if (text != nullptr) return absl::OkStatus();
    // Without groups: one of all that was trained, or, of a model only, may be.
    plan_.groups.emplace_back();
    members_.emplace_back();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      Candidate& candidate = candidates_[i];
      candidate.is_grouped = has_state_ ? candidate.has_state() : IsFloatingPoint(TensorOf(*candidate.model).dtype);
      if (candidate.is_grouped) members_[0].push_back(i);
    }
    plan_.notes.emplace_back(
        "written with one group of parameters: DeepSpeed loads as many groups as its optimizer and the checkpoint both "
        "have, so load it with an optimizer of one group");
    return absl::OkStatus();
  }

  absl::Status AddGroup(PythonJson& options) {
    const auto names = options.find("params");
    if (names == options.end() || !names->is_array()) {
      return absl::InvalidArgumentError("a group of param_groups has no list \"params\"");
    }
    std::vector<size_t>& members = members_.emplace_back();
    for (const PythonJson& name : *names) {
      Candidate* const candidate = name.is_string() ? Find(name.get<std::string>()) : nullptr;
      if (candidate == nullptr) {
        absent_.Add(name.is_string() ? name.get<std::string>() : name.dump());
        continue;
      }
      if (candidate->is_grouped) return Refused(candidate->model->first, "it is in param_groups twice");
      candidate->is_grouped = true;
      members.push_back(candidate - candidates_.data());
    }
    options.erase("params");
    options.erase("param_names");
    plan_.groups.push_back({std::move(options), {}});
    return absl::OkStatus();
  }

  // Parameters that never had a gradient have no state. Those that have some have the same.
  absl::Status CheckStates() const {
    const Candidate* first = nullptr;
    for (const Candidate& candidate : candidates_) {
      if (candidate.parameter.step == nullptr && candidate.parameter.states.empty()) continue;
      if (first == nullptr) first = &candidate;
      if (StatesOf(candidate) == StatesOf(*first)) continue;
      return Refused(candidate.model->first,
                     absl::StrCat("it has the optimizer state ", TextOf(StatesOf(candidate)), ", and ",
                                  Quote(first->model->first.fqn), " has ", TextOf(StatesOf(*first)),
                                  ": a universal checkpoint has the same files for each parameter"));
    }
    return absl::OkStatus();
  }

  static std::set<std::string> StatesOf(const Candidate& candidate) {
    std::set<std::string> states;
    for (const auto& [name, entry] : candidate.parameter.states) states.insert(name);
    if (candidate.parameter.step != nullptr) states.insert(kStep);
    return states;
  }

  static std::string TextOf(const std::set<std::string>& states) {
    std::string text;
    for (const std::string& state : states) absl::StrAppend(&text, text.empty() ? "" : ", ", state);
    return text;
  }

  absl::Status Place(Candidate& candidate) {
    if (!candidate.is_grouped) {
      untrained_.Add(candidate.model->first.fqn);
      plan_.module.push_back(candidate.model);
      return absl::OkStatus();
    }
    UniversalParameter& parameter = candidate.parameter;
    parameter.name = candidate.model->first.fqn;
    FSDP_RETURN_IF_ERROR(CheckIsFileName(candidate.model->first, parameter.name, 0));
    if (parameter.name == kDeepSpeedOptimizerState) {
      return Refused(candidate.model->first, "a file of DeepSpeed has that name");
    }
    parameter.fp32 = candidate.master != nullptr ? candidate.master : candidate.model;
    if (candidate.master != nullptr) plan_.module.push_back(candidate.model);
    if (TensorOf(*parameter.fp32).dtype != DType::kFloat32) not_float32_.Add(parameter.name);
    if (has_state_ && !candidate.has_state()) without_state_.Add(parameter.name);
    places_.emplace(&candidate, plan_.parameters.size());
    plan_.parameters.push_back(std::move(parameter));
    return absl::OkStatus();
  }

  // In the order of param_groups, which is the order of a state by id.
  void FillGroups() {
    for (size_t i = 0; i < members_.size(); ++i) {
      for (const size_t member : members_[i]) plan_.groups[i].parameters.push_back(places_.at(&candidates_[member]));
    }
  }

  void AddNotes() {
    std::vector<std::string>& notes = plan_.notes;
    absent_.AddNote("name", "left out of param_groups: the model has no such tensor", notes);
    untrained_.AddNote("tensor",
                       "in the model file only, as frozen parameters and buffers are: DeepSpeed's load_checkpoint with "
                       "load_universal does not take them from there",
                       notes);
    not_float32_.AddNote("parameter", "not float32: DeepSpeed converts as it loads", notes);
    without_state_.AddNote("parameter", "without optimizer state, which others have", notes);
  }

  static absl::Status CheckIsFileName(const StateKey& key, const std::string& name, size_t more) {
    constexpr size_t kMaxFileName = 255;
    if (CheckFileName(name).ok() && name.size() + more <= kMaxFileName) return absl::OkStatus();
    return Refused(key, absl::StrCat("DeepSpeed has a ", more == 0 ? "folder" : "file", " of that name, and no ",
                                     more == 0 ? "folder" : "file", " can have it: choose another one with --rename"));
  }

  static absl::Status Refused(const StateKey& key, const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(key), " cannot be in a universal checkpoint of DeepSpeed: ", why));
  }

  const StateDict& contents_;
  std::vector<Candidate> candidates_;
  absl::flat_hash_map<std::string, size_t> index_;        // into candidates_, by name
  std::vector<std::vector<size_t>> members_;              // of each group; into candidates_
  absl::flat_hash_map<const Candidate*, size_t> places_;  // into the plan's parameters
  UniversalPlan plan_;
  bool has_state_ = false;  // any of them
  Some absent_, untrained_, not_float32_, without_state_;
};

}  // namespace

absl::StatusOr<UniversalPlan> PlanUniversal(const StateDict& contents) { return Planner(contents).Plan(); }

}  // namespace fsdp
