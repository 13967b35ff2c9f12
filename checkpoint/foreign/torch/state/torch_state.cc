// SPDX-License-Identifier: Apache-2.0
//
// One walk through the tree, which is freed on the way, adds models and extra values. Flat parameters of FSDP1
// (flat_model.h) wait until the whole model is known, and optimizers after them, because ids get their names from the
// model. Names of nested dicts are joined by dots, as in torch's own state_dict() names.
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/counted_note.h"
#include "fsdp/checkpoint/foreign/torch/state/divided_value.h"
#include "fsdp/checkpoint/foreign/torch/state/flat_model.h"
#include "fsdp/checkpoint/foreign/torch/state/model_names.h"
#include "fsdp/checkpoint/foreign/torch/state/optimizer_form.h"
#include "fsdp/checkpoint/foreign/torch/state/optimizer_set.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch/state/state_path.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_layout.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"
#include "fsdp/checkpoint/foreign/torch/state/training_step.h"
#include "fsdp/checkpoint/foreign/torch/state/tree_place.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

// Views can claim any size; within this limit sums of bytes do not overflow.
absl::Status CheckTotal(const TorchLeafTypes& tensors) {
  constexpr int64_t kMaxBytes = int64_t{1} << 60;
  int64_t left = kMaxBytes;
  for (int64_t i = 0; i < tensors.size(); ++i) {
    const TorchLeafType type = tensors[static_cast<int>(i)];
    if (type.shape.numel() > left / SizeOf(type.dtype)) {
      return absl::DataLossError(
          absl::StrCat("its tensors have more than 2^60 bytes, with one of shape ", type.shape.ToString()));
    }
    left -= type.shape.numel() * SizeOf(type.dtype);
  }
  return absl::OkStatus();
}

// The contents of a file that is no dict.
std::string Described(const TorchNode& root, const TorchLeafTypes& tensors) {
  if (root.kind() == Kind::kTensor) {
    const TorchLeafType type = tensors[root.tensor()];
    return absl::StrCat("one tensor, ", std::string(DTypeName(type.dtype)), " ", type.shape.ToString());
  }
  return root.is_branch() ? absl::StrCat("a list of ", root.members().size(), " items") : "one value";
}

// Walks the tree once and moves every value out of it: tensors of models and extra values are added as they come, flat
// parameters and optimizers are set aside, because they need all names of the model.
class StateBuilder {
 public:
  // `objects`: those that were taken out of the tree.
  StateBuilder(const TorchLeafTypes& tensors, const TorchStateOptions& options, const std::vector<TorchObject>& objects)
      : tensors_(tensors), options_(options), objects_(objects), step_(tensors, options.read) {
    // Reserves some extra for texts: growing past the reservation would hold two copies of the array. Unused capacity
    // is never touched.
    const size_t room = tensors.size() + tensors.size() / 8 + 64;
    state_.contents.Reserve(room);
    state_.leaves.reserve(room);
  }

  // Names are collected before any is used: which wrappers' prefixes are taken off depends on all of them.
  absl::StatusOr<TorchState> Build(TorchNode root) {
    Expand(root);
    if (!root.is_branch() || root.is_list) {
      return absl::InvalidArgumentError(absl::StrCat("it holds no dict, but ", Described(root, tensors_),
                                                     "; a state dict is expected: save {\"NAME\": value}"));
    }
    FSDP_ASSIGN_OR_RETURN(TorchLayout layout, LayoutOf(root, tensors_, options_.map));
    state_.layout = std::move(layout.description);
    const TreePlace top = {.branch = &layout.root, .role = layout.root.role, .model = &layout.root};
    if (!options_.skip_weights) FSDP_RETURN_IF_ERROR(CheckHoldsNoWeights(objects_, top, layout.models));
    SeeNames(top, root);
    FSDP_RETURN_IF_ERROR(AddMembers(top, root));
    FSDP_RETURN_IF_ERROR(ReplaceFlatParameters(flats_, tensors_, options_, state_));
    if (!options_.model_only || layout.models == 0) FSDP_RETURN_IF_ERROR(AddOptimizers());
    return Finished();
  }

 private:
  using Role = TorchBranch::Role;

  // Texts at the end have (unused) leaves like the other entries.
  TorchState Finished() {
    state_.leaves.resize(state_.contents.entries().size());
    state_.step = step_.step();
    std::vector<std::string>& notes = state_.layout.notes;
    for (const SeenModel& model : models_) {
      if (const std::string note = model.names.note(); !note.empty()) notes.push_back(note);
    }
    if (const std::string note = step_.note(); !note.empty()) notes.push_back(note);
    nested_.AddNote(" tensor is in dicts", " tensors are in dicts",
                    " or lists inside of a model, and named by the path: ", notes);
    keys_.AddNote(" key of a model that is no text became one", " keys of a model that are no texts became texts",
                  ", such as ", notes);
    moments_.AddNote(" tensor", " tensors", " of the model named as an optimizer's state, such as ", notes);
    unused_.AddNote(" value None", " values None", " of the optimizer's state left out, such as ", notes);
    parameters_.AddNote(" extra value is a torch.nn.Parameter, read as a tensor",
                        " extra values are torch.nn.Parameters, read as tensors", ", such as ", notes);
    attributes_.AddNote(" extra tensor has attributes of Python", " extra tensors have attributes of Python",
                        ", which are left out, such as ", notes);
    return std::move(state_);
  }

  struct SeenModel {
    const TorchBranch* branch = nullptr;
    ModelNames names;
  };

  ModelNames& NamesOf(const TorchBranch* model) {
    const auto [at, is_new] = numbers_.try_emplace(model, models_.size());
    if (is_new) models_.push_back({model, {}});
    return models_[at->second].names;
  }

  // Collects the names of each model.
  void SeeNames(const TreePlace& place, const TorchNode& node) {
    const OptimizerMembers own(place.branch != nullptr && place.branch->is_optimizer ? node : TorchNode());
    for (const auto& [key, member] : node.members()) {
      if (own.Has(key)) continue;
      if (member.kind() == Kind::kTensor) {
        const TreePlace inner = place.OfTensor(key);
        if (inner.is_model()) NamesOf(inner.model).See(inner.name);
      } else if (member.is_branch()) {
        const TreePlace inner = place.Inside(key);
        if (inner.branch != nullptr || inner.is_model()) SeeNames(inner, member);
      }
    }
  }

  // Adds the members of a branch that has a role, or a branch with one inside. Optimizers wait in optimizers_.
  // The order of the questions is the rule: a tensor in a model, a branch with roles inside, a counter, a value of a
  // module, an extra value.
  absl::Status AddMembers(const TreePlace& place, TorchNode& node) {
    if (place.branch != nullptr && place.branch->is_optimizer) FSDP_RETURN_IF_ERROR(TakeOptimizer(place, node));
    parts_.Reserve(place, node);
    return node.Consume([&](const std::string& key, TorchNode& member) -> absl::Status {
      const bool is_tensor = member.kind() == Kind::kTensor;
      const TreePlace inner = is_tensor ? place.OfTensor(key) : place.Inside(key);
      if (is_tensor && inner.is_model()) {
        if (place.role == Role::kTopModel) FSDP_RETURN_IF_ERROR(step_.Add(inner.path, key, place.depth, member));
        if (inner.name != key) nested_.Add(inner.path);
        if (member.has_json_name) keys_.Add(inner.path);
        return AddModelTensor(inner, member.tensor());
      }
      const bool is_optimizer = inner.branch != nullptr && inner.branch->is_optimizer;
      const bool has_roles = inner.branch != nullptr && inner.role != Role::kExtra;
      // The extra state of a module comes back as one value, whatever is in it.
      const bool is_extra_state = IsModelValue(place, inner) && IsExtraState(inner.name);
      const bool has_model = has_roles || (inner.is_model() && HoldsTensor(member) && !is_extra_state);
      if (is_optimizer || (member.is_branch() && has_model)) {
        return AddMembers(inner, member);
      }
      FSDP_RETURN_IF_ERROR(step_.Add(inner.path, key, place.depth, member));
      return IsModelValue(place, inner) ? AddModelValue(inner, member) : AddExtra(inner.path, member);
    });
  }

  // In the dict that is a whole file the values of modules are next to the program's.
  static bool IsModelValue(const TreePlace& place, const TreePlace& inner) {
    const bool is_at_top = place.path.empty() || place.role == Role::kTopModel;
    if (!is_at_top) return inner.is_model() && !inner.name.empty();
    const bool is_in_model = inner.is_model() || place.role == Role::kTopModel;
    return is_in_model && inner.branch == nullptr && IsNameInModule(inner.name);
  }

  absl::Status AddModelValue(const TreePlace& place, const TorchNode& node) {
    const std::string name = absl::StrCat(place.model->prefix, NamesOf(place.model).Unwrapped(place.name));
    return AddExtra(ModelValue(name).fqn, node);
  }

  // Moves the optimizer's members of `node` to optimizers_.
  absl::Status TakeOptimizer(const TreePlace& place, TorchNode& node) {
    Expand(node);
    const OptimizerMembers own(node);
    TorchNode optimizer;
    if (!own.have_others()) {
      optimizer = std::exchange(node, TorchNode());
    } else {
      TorchNode others;
      FSDP_RETURN_IF_ERROR(node.Consume([&](const std::string& key, TorchNode& member) {
        (own.Has(key) ? optimizer : others).Add(key, std::move(member));
        return absl::OkStatus();
      }));
      node = std::move(others);
    }
    FSDP_ASSIGN_OR_RETURN(optimizer, NestedOptimizer(std::move(optimizer), tensors_, options_.read));
    optimizers_.push_back({.branch = place.path, .node = std::move(optimizer), .prefix = place.branch->prefix});
    return absl::OkStatus();
  }

  absl::Status AddModelTensor(const TreePlace& place, int tensor) {
    if (IsFlatName(place.name)) {
      flats_.emplace_back(absl::StrCat(place.model->prefix, place.name), tensor);
      return absl::OkStatus();
    }
    const std::string name = absl::StrCat(place.model->prefix, NamesOf(place.model).Unwrapped(place.name));
    if (IsMomentName(std::string_view(name).substr(name.rfind('.') + 1))) moments_.Add(name);
    const TorchLeafType type = tensors_[tensor];
    if (type.identity >= 0) {
      const auto identity = static_cast<size_t>(type.identity);
      if (identity >= first_names_.size()) first_names_.resize(std::max<size_t>(identity + 1, tensors_.size()));
      // A second name of the same view is an alias, so tied weights are stored once.
      uint32_t& first = first_names_[identity];
      if (first != 0) {
        state_.contents.aliases[name] = state_.contents.entries()[first - 1].first.fqn;
        return absl::OkStatus();
      }
      first = static_cast<uint32_t>(state_.contents.entries().size() + 1);
    }
    return AddTensor(StateKey::Model(name), tensor);
  }

  absl::Status AddTensor(StateKey key, int index) {
    if (state_.contents.contains(key)) return Twice(key);
    const TorchLeafType type = tensors_[index];
    // A model's tensors are parameters anyway, with attributes that FSDP and others set.
    const bool is_extra = key.section == StateKey::Section::kExtra;
    if (is_extra && type.wrapper.is_parameter) parameters_.Add(key.fqn);
    if (is_extra && type.wrapper.has_attributes) attributes_.Add(key.fqn);
    state_.Set(std::move(key), type.dtype, type.shape, {TorchTensorPart{.tensor = index}});
    return absl::OkStatus();
  }

  // Values become texts and tensors stay tensors; a container with a tensor is divided (extra_parts.h).
  absl::Status AddExtra(const std::string& name, const TorchNode& node) {
    const StateKey key = StateKey::Extra(name);
    if (options_.model_only && state_.contents.contains(key)) return absl::OkStatus();  // extra values are not read
    if (node.kind() == Kind::kTensor) return AddTensor(key, node.tensor());
    if (HoldsTensor(node)) {
      const auto add = [this](const std::string& path, const TorchNode& child) -> absl::StatusOr<std::string> {
        std::string part = parts_.NameOf(path, state_.contents);
        FSDP_RETURN_IF_ERROR(AddExtra(part, child));
        return part;
      };
      FSDP_ASSIGN_OR_RETURN(std::string text, DivideValue(name, node, add));
      if (state_.contents.contains(key)) return Twice(key);
      state_.contents.Set(key, std::move(text));
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(const PythonJson json, node.ToJson());
    if (state_.contents.contains(key)) return Twice(key);
    state_.contents.Set(key, TextOfPython(json));
    return absl::OkStatus();
  }

  absl::Status AddOptimizers() {
    if (optimizers_.empty()) return absl::OkStatus();
    std::vector<ParameterScope> scopes;
    for (const SeenModel& model : models_) {
      const ModelNames& names = model.names;
      ParameterScope& scope = scopes.emplace_back();
      scope.prefix = model.branch->prefix;
      scope.rename = [&names](const std::string& name) { return names.Unwrapped(name); };
    }
    for (ParameterScope& scope : scopes) {
      for (const SeenModel& model : models_) {
        const bool is_inside = model.branch->prefix.size() > scope.prefix.size();
        if (is_inside && scopes.size() <= kMostModels) scope.others.push_back(model.branch->prefix);
      }
    }
    const auto add = [this](StateKey key, TorchOptimizerState state) { return AddState(std::move(key), state); };
    FSDP_ASSIGN_OR_RETURN(OptimizerSet set,
                          ReadOptimizers(std::move(optimizers_), scopes, tensors_, state_.contents, options_, add));
    if (!set.param_groups.empty()) state_.contents.Set(StateKey::ParamGroups(), std::move(set.param_groups));
    for (const FoundOptimizer& unread : set.unread) {
      const std::string name = unread.branch.empty() ? "the optimizer" : Quote(unread.branch);
      state_.layout.notes.push_back(absl::StrCat(name, " became extra values: ", unread.reason));
      state_.layout.is_usual = false;
      if (!unread.branch.empty()) {  // one value, so that it is written back as the dict that it was
        FSDP_RETURN_IF_ERROR(AddExtra(unread.branch, unread.node));
        continue;
      }
      for (const auto& [key, member] : unread.node.members()) FSDP_RETURN_IF_ERROR(AddExtra(key, member));
    }
    return absl::OkStatus();
  }

  // A None in a list keeps the place of the elements after it.
  static bool IsInList(const std::string& state) {
    const std::vector<StatePathElement> path = SplitStatePath(state);
    return std::any_of(path.begin(), path.end(), [](const StatePathElement& element) { return element.is_index; });
  }

  absl::Status AddState(StateKey key, const TorchOptimizerState& state) {
    if (state.value && state.value->is_null() && !IsInList(key.state)) {
      unused_.Add(key.ToString());
      return absl::OkStatus();
    }
    if (state.value) key = ExtraOfState(key.fqn, key.state);
    if (state_.contents.contains(key)) return Twice(key);
    if (state.value) {
      state_.contents.Set(std::move(key), TextOfPython(*state.value));
    } else {
      state_.Set(std::move(key), state.dtype, state.shape, state.leaf);
    }
    return absl::OkStatus();
  }

  static absl::Status Twice(const StateKey& key) {
    return absl::DataLossError(absl::StrCat(Quote(key.ToString()), " occurs twice"));
  }

  const TorchLeafTypes& tensors_;
  const TorchStateOptions& options_;
  const std::vector<TorchObject>& objects_;
  TorchState state_;
  TrainingStep step_;
  std::vector<SeenModel> models_;                 // in the order of the file
  std::map<const TorchBranch*, size_t> numbers_;  // in models_
  std::vector<uint32_t> first_names_;             // by identity: entry of state_.contents, from 1; 0: unseen
  std::vector<FlatTensor> flats_;
  std::vector<FoundOptimizer> optimizers_;
  PartNames parts_;         // of extra values
  CountedNote nested_;      // tensors in dicts and lists of a model
  CountedNote keys_;        // tensors of models whose keys are no texts
  CountedNote moments_;     // tensors of models, with names of optimizer state
  CountedNote unused_;      // values None of optimizers
  CountedNote parameters_;  // extra values that were parameters
  CountedNote attributes_;  // extra values that were tensors with attributes
};

}  // namespace

void TorchState::Set(StateKey key, DType dtype, const Shape& shape, TorchLeaf leaf) {
  const std::optional<size_t> replaced = contents.IndexOf(key);
  const size_t place = replaced.value_or(contents.entries().size());
  ShardedTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  contents.Set(std::move(key), std::move(tensor));
  leaves.resize(contents.entries().size());
  leaves[place] = std::move(leaf);
}

void TorchState::TakeTrainerState() {
  if (step) return;
  TrainerState trainer = ReadTrainerState(path);
  if (trainer.step >= 0) step = trainer.step;
  if (!trainer.note.empty()) layout.notes.push_back(std::move(trainer.note));
}

absl::StatusOr<const TorchLeaf*> TorchState::FindLeaf(const StateKey& key) const {
  const std::optional<size_t> entry = contents.IndexOf(key);
  if (entry && std::holds_alternative<ShardedTensor>(contents.entries()[*entry].second)) return &leaves[*entry];
  return absl::NotFoundError(absl::StrCat(path, " holds no tensor ", Quote(key.ToString())));
}

// A leaf is a part of a tensor in the file, or a number that was in the pickle.
absl::Status TorchState::Read(const StateKey& key, const Interval& interval, const TorchTensorReader& read,
                              std::byte* out) const {
  FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, FindLeaf(key));
  const ShardedTensor& described = *contents.FindTensor(key);
  FSDP_RETURN_IF_ERROR(CheckElements(key, interval, described.shape.numel()));
  if (const TorchTensorPart* const part = leaf->tensor_part()) {
    return read(part->tensor, {part->offset + interval.begin, part->offset + interval.end}, out);
  }
  const TorchNumber& number = std::get<TorchNumber>(leaf->source);
  const int64_t size = SizeOf(described.dtype);
  std::memcpy(out, number.bytes.data() + interval.begin * size, interval.size() * size);
  return absl::OkStatus();
}

// Objects of classes come out first: they have no value here, and must not look like empty ones.
absl::StatusOr<TorchState> StateOfTree(TorchNode root, const TorchLeafTypes& tensors,
                                       const TorchStateOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckTotal(tensors));
  const std::vector<TorchObject> objects = TakeObjects(root);
  const bool is_whole = !objects.empty() && objects[0].path.empty();
  if (is_whole || (!objects.empty() && !options.skip_objects)) return RefuseObjects(objects);
  FSDP_ASSIGN_OR_RETURN(TorchState state, StateBuilder(tensors, options, objects).Build(std::move(root)));
  state.left_out = DescribeObjects(objects);
  return state;
}

}  // namespace fsdp
