// SPDX-License-Identifier: Apache-2.0
//
// No standard defines how a model and its optimizer are put into one file. The rules, in order:
//
//   1. an optimizer's state dict by itself, in any of its forms, is an optimizer without a model;
//   2. the one member that has a model's usual name and holds a tensor is the model; the one that has an optimizer's
//      usual name and form is the optimizer. Two candidates are an error, not a choice;
//   3. with neither, the whole dict is the model, except its plain values;
//   4. everything else is an extra value, by its path.
//
// Names of nested dicts are joined by dots, as in torch's own state_dict() names. The model comes first, because the
// optimizer's ids get their names from it.
//
// Flat parameters of FSDP1 (LOCAL state dicts) wait in flats_ until the whole model is known, and are then replaced by
// the parameters inside them. Nothing is copied: a parameter's leaf is the flat tensor and an offset.
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/divided_value.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_objects.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_optimizer.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr std::array kModelNames = {"model", "state_dict", "module", "model_state_dict"};
constexpr std::array kOptimizerNames = {"optim", "optimizer", "optimizer_state_dict", "optim_state_dict"};

bool HoldsTensor(const TorchNode& node) {
  return node.kind() == Kind::kTensor || std::any_of(node.members().begin(), node.members().end(),
                                                     [](const auto& member) { return HoldsTensor(member.second); });
}

absl::Status LayoutWanted(const std::string& name) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quote(name), " is a flat parameter of FSDP1, which does not record where its parameters are; ",
                   kGiveFlatLayout, "; or save a FULL or SHARDED state dict, under their own names"));
}

// `status`: the layout, from a file or from the model that is being filled, does not fit the flat parameters.
absl::Status OtherLayoutWanted(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(std::string(status.message()), "; ", kGiveFlatLayout));
}

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

class StateBuilder {
 public:
  StateBuilder(const TorchLeafTypes& tensors, const TorchStateOptions& options) : tensors_(tensors), options_(options) {
    // Reserves some extra for texts: growing past the reservation would hold two copies of the array. Unused capacity
    // is never touched.
    const size_t room = tensors.size() + tensors.size() / 8 + 64;
    state_.contents.Reserve(room);
    state_.leaves.reserve(room);
  }

  absl::StatusOr<TorchState> Build(TorchNode root) {
    Expand(root);
    if (!root.is_branch() || root.is_list) {
      return absl::InvalidArgumentError("it holds no dict, but a state dict is expected");
    }
    if (IsOptimizer(root)) {
      FSDP_RETURN_IF_ERROR(AddOptimizer(std::move(root)));
      return Finished();
    }
    FSDP_ASSIGN_OR_RETURN(const std::string model, FindSection(root, kModelNames, &HoldsTensor));
    FSDP_ASSIGN_OR_RETURN(const std::string optimizer, FindSection(root, kOptimizerNames, &IsOptimizer));
    if (!model.empty()) FSDP_RETURN_IF_ERROR(AddModel(*root.Find(model), "", /*extra_prefix=*/model + "."));
    TorchNode optimizer_node;
    if (!optimizer.empty()) optimizer_node = std::move(*root.Find(optimizer));
    FSDP_RETURN_IF_ERROR(root.Consume([&](const std::string& name, TorchNode& node) {
      if (name == model || name == optimizer) return absl::OkStatus();
      const bool is_model = model.empty() && optimizer.empty() && HoldsTensor(node);
      return is_model ? AddModelNode(name, node, "") : AddExtra(name, node);
    }));
    FSDP_RETURN_IF_ERROR(AddFlatParameters());
    const bool is_wanted = !optimizer.empty() && !(options_.model_only && !model.empty());
    if (is_wanted) FSDP_RETURN_IF_ERROR(AddOptimizer(std::move(optimizer_node)));
    return Finished();
  }

 private:
  // Texts at the end have (unused) leaves like the other entries.
  TorchState Finished() {
    state_.leaves.resize(state_.contents.entries().size());
    return std::move(state_);
  }

  // Adds a tensor, or replaces the one with that key.
  void SetTensor(StateKey key, DType dtype, const Shape& shape, TorchLeaf leaf) {
    const std::optional<size_t> replaced = state_.contents.IndexOf(key);
    const size_t place = replaced.value_or(state_.contents.entries().size());
    ShardedTensor tensor;
    tensor.dtype = dtype;
    tensor.shape = shape;
    state_.contents.Set(std::move(key), std::move(tensor));
    state_.leaves.resize(state_.contents.entries().size());
    state_.leaves[place] = std::move(leaf);
  }

  // The name of the member that has one of `names` and for which `is_one` is true; "" if there is no such member.
  template <typename Names>
  absl::StatusOr<std::string> FindSection(const TorchNode& root, const Names& names, bool (*is_one)(const TorchNode&)) {
    std::string found;
    for (const char* name : names) {
      const TorchNode* node = root.Find(name);
      if (node == nullptr || (!node->is_branch() && node->kind() != Kind::kValue) || !is_one(*node)) continue;
      if (!found.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("it has both ", Quote(found), " and ", Quote(name), ", and only one of them can be meant"));
      }
      found = name;
    }
    return found;
  }

  static bool IsOptimizer(const TorchNode& node) { return IsTorchOptimizer(node); }

  absl::Status AddModel(TorchNode& node, const std::string& prefix, const std::string& extra_prefix) {
    return node.Consume(
        [&](const std::string& name, TorchNode& member) { return AddModelNode(prefix + name, member, extra_prefix); });
  }

  absl::Status AddModelNode(const std::string& name, TorchNode& node, const std::string& extra_prefix) {
    if (node.is_branch()) return AddModel(node, name + ".", extra_prefix);
    if (node.kind() == Kind::kValue) return AddExtra(extra_prefix + name, node);
    if (IsFlatName(name)) {
      flats_.emplace_back(name, node.tensor());
      return absl::OkStatus();
    }
    const TorchLeafType type = tensors_[node.tensor()];
    if (type.identity >= 0) {
      const auto identity = static_cast<size_t>(type.identity);
      if (identity >= first_names_.size()) first_names_.resize(std::max<size_t>(identity + 1, tensors_.size()));
      uint32_t& first = first_names_[identity];
      if (first != 0) {
        state_.contents.aliases[name] = state_.contents.entries()[first - 1].first.fqn;
        return absl::OkStatus();
      }
      first = static_cast<uint32_t>(state_.contents.entries().size() + 1);
    }
    return AddTensor(StateKey::Model(name), node.tensor());
  }

  // Replaces the flat parameters in flats_ with the parameters inside them.
  absl::Status AddFlatParameters() {
    if (flats_.empty()) return absl::OkStatus();
    if (options_.flat.layout == nullptr) return LayoutWanted(flats_[0].first);
    std::vector<std::string> names;
    for (const auto& [name, index] : flats_) names.push_back(UnitOfFlatName(name));
    absl::StatusOr<std::vector<FlatUnit>> units = DivideIntoUnits(options_.flat.layout->parameters, names);
    if (!units.ok()) return OtherLayoutWanted(units.status());
    for (size_t i = 0; i < units->size(); ++i) {
      const int64_t numel = tensors_[flats_[i].second].shape.numel();
      const absl::Status placed = PlaceParts(numel, options_.flat.world_size, (*units)[i]);
      if (!placed.ok()) return OtherLayoutWanted(placed);
    }
    FSDP_RETURN_IF_ERROR(RemoveSlices(*units));
    for (size_t i = 0; i < units->size(); ++i) {
      for (const FlatUnit::Part& part : (*units)[i].parts) {
        SetTensor(StateKey::Model(part.fqn), tensors_[flats_[i].second].dtype, part.shape,
                  {TorchTensorPart{.tensor = flats_[i].second, .offset = part.offset}});
      }
    }
    return absl::OkStatus();
  }

  // With use_orig_params DCP also stores some rank's slice of each parameter, under the parameter's name. These slices
  // are removed: the flat parameters have all elements. A shared parameter has a slice under each of its names, and the
  // layout lists only the first, so a slice under another name is found by its elements and becomes an alias.
  absl::Status RemoveSlices(const std::vector<FlatUnit>& units) {
    std::set<std::string> parameters;
    bool has_slices = false;
    for (const FlatLayout::Parameter& parameter : options_.flat.layout->parameters) {
      parameters.insert(parameter.fqn);
      has_slices = has_slices || state_.contents.contains(StateKey::Model(parameter.fqn));
    }
    if (!has_slices) return absl::OkStatus();
    StateDict kept;
    std::vector<TorchLeaf> kept_leaves;
    kept.aliases = state_.contents.aliases;
    state_.leaves.resize(state_.contents.entries().size());
    for (size_t i = 0; i < state_.leaves.size(); ++i) {
      const auto& [key, value] = state_.contents.entries()[i];
      bool is_kept = key.section != StateKey::Section::kModel || !std::holds_alternative<ShardedTensor>(value);
      if (!is_kept && parameters.count(key.fqn) == 0) {
        FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> shared,
                              SharedWith(state_.leaves[i].tensor_part()->tensor, units));
        if (shared.has_value() && !shared->empty()) kept.aliases[key.fqn] = *shared;
        is_kept = !shared.has_value();
      }
      if (!is_kept) continue;
      kept.Set(key, value);
      kept_leaves.push_back(state_.leaves[i]);
    }
    state_.contents = std::move(kept);
    state_.leaves = std::move(kept_leaves);
    return absl::OkStatus();
  }

  // The parameter that shares its elements with `tensor`, found by comparing them with each rank's slice of each
  // parameter; "" if `tensor` has no elements (ambiguous); nullopt if it is a buffer: no parameter has its elements, or
  // several do.
  absl::StatusOr<std::optional<std::string>> SharedWith(int tensor, const std::vector<FlatUnit>& units) const {
    const TorchLeafType type = tensors_[tensor];
    std::optional<std::string> found;
    if (type.shape.rank() != 1 || options_.read == nullptr) return found;
    if (type.shape.numel() == 0) return std::make_optional<std::string>();
    for (size_t i = 0; i < units.size(); ++i) {
      if (tensors_[flats_[i].second].dtype != type.dtype) continue;
      for (const FlatUnit::Part& part : units[i].parts) {
        FSDP_ASSIGN_OR_RETURN(const bool is_slice, IsSliceOf(part, flats_[i].second, tensor));
        if (!is_slice) continue;
        if (found.has_value()) return std::optional<std::string>();
        found = part.fqn;
      }
    }
    return found;
  }

  // True if `tensor` has the elements of some rank's slice of `part`. FSDP1 cuts a flat parameter into equal shards, so
  // the candidates are the parts of `part` in each shard; sizes rule out most of them before anything is read.
  absl::StatusOr<bool> IsSliceOf(const FlatUnit::Part& part, int flat, int tensor) const {
    if (part.shape.numel() == 0) return false;
    const int64_t ranks = options_.flat.world_size;
    const int64_t shard_numel = (tensors_[flat].shape.numel() + ranks - 1) / ranks;
    const Interval whole = {part.offset, part.offset + part.shape.numel()};
    for (int64_t rank = whole.begin / shard_numel; rank * shard_numel < whole.end; ++rank) {
      const Interval slice = Intersect(whole, {rank * shard_numel, (rank + 1) * shard_numel});
      if (slice.size() != tensors_[tensor].shape.numel()) continue;
      FSDP_ASSIGN_OR_RETURN(const bool is_equal, IsPartOf(flat, slice, tensor));
      if (is_equal) return true;
    }
    return false;
  }

  absl::StatusOr<bool> IsPartOf(int flat, const Interval& slice, int tensor) const {
    constexpr int64_t kElements = int64_t{1} << 20;  // bounds the memory of a comparison
    const DType dtype = tensors_[tensor].dtype;
    for (int64_t begin = slice.begin; begin < slice.end; begin += kElements) {
      const int64_t end = std::min(begin + kElements, slice.end);
      FSDP_ASSIGN_OR_RETURN(const std::string expected, ReadBytes(options_.read, flat, dtype, {begin, end}));
      FSDP_ASSIGN_OR_RETURN(const std::string actual,
                            ReadBytes(options_.read, tensor, dtype, {begin - slice.begin, end - slice.begin}));
      if (expected != actual) return false;
    }
    return true;
  }

  absl::Status AddTensor(StateKey key, int index) {
    if (state_.contents.contains(key)) return Twice(key);
    SetTensor(std::move(key), tensors_[index].dtype, tensors_[index].shape, {TorchTensorPart{.tensor = index}});
    return absl::OkStatus();
  }

  // Values become texts and tensors stay tensors; a container with a tensor is divided (extra_parts.h).
  absl::Status AddExtra(const std::string& name, const TorchNode& node) {
    const StateKey key = StateKey::Extra(name);
    if (node.kind() == Kind::kTensor) return AddTensor(key, node.tensor());
    if (HoldsTensor(node)) {
      const auto add = [this](const std::string& part, const TorchNode& child) { return AddExtra(part, child); };
      FSDP_ASSIGN_OR_RETURN(std::string text, DivideValue(name, node, add));
      if (state_.contents.contains(key)) return Twice(key);
      state_.contents.Set(key, std::move(text));
      return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(const PythonJson json, node.ToJson());
    if (state_.contents.contains(key)) return Twice(key);
    if (name == "step" && json.is_number_integer()) state_.step = json.get<int64_t>();
    state_.contents.Set(key, TextOfPython(json));
    return absl::OkStatus();
  }

  absl::Status AddOptimizer(TorchNode node) {
    const auto add = [this](StateKey key, TorchOptimizerState state) {
      if (state_.contents.contains(key)) return Twice(key);
      SetTensor(std::move(key), state.dtype, state.shape, state.leaf);
      return absl::OkStatus();
    };
    FSDP_ASSIGN_OR_RETURN(std::string param_groups,
                          ReadTorchOptimizer(std::move(node), tensors_, state_.contents, options_, add));
    if (!param_groups.empty()) state_.contents.Set(StateKey::ParamGroups(), std::move(param_groups));
    return absl::OkStatus();
  }

  static absl::Status Twice(const StateKey& key) {
    return absl::DataLossError(absl::StrCat(Quote(key.ToString()), " occurs twice"));
  }

  const TorchLeafTypes& tensors_;
  const TorchStateOptions& options_;
  TorchState state_;
  std::vector<uint32_t> first_names_;               // by identity: entry of state_.contents, from 1; 0: unseen
  std::vector<std::pair<std::string, int>> flats_;  // names of flat parameters, and their tensors
};

}  // namespace

absl::StatusOr<const TorchLeaf*> TorchState::FindLeaf(const StateKey& key) const {
  const std::optional<size_t> entry = contents.IndexOf(key);
  if (entry && std::holds_alternative<ShardedTensor>(contents.entries()[*entry].second)) return &leaves[*entry];
  return absl::NotFoundError(absl::StrCat(path, " holds no tensor ", Quote(key.ToString())));
}

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

absl::StatusOr<TorchState> StateOfTree(TorchNode root, const TorchLeafTypes& tensors,
                                       const TorchStateOptions& options) {
  FSDP_RETURN_IF_ERROR(CheckTotal(tensors));
  const std::vector<TorchObject> objects = TakeObjects(root);
  const bool is_whole = !objects.empty() && objects[0].path.empty();
  if (is_whole || (!objects.empty() && !options.skip_objects)) return RefuseObjects(objects);
  FSDP_ASSIGN_OR_RETURN(TorchState state, StateBuilder(tensors, options).Build(std::move(root)));
  state.left_out = DescribeObjects(objects);
  return state;
}

}  // namespace fsdp
