// SPDX-License-Identifier: Apache-2.0
//
// One pass over the state dict for each section pushes dicts, and each tensor as the call that rebuilds it:
//
//   torch._utils._rebuild_tensor_v2(
//       ("storage", torch.FloatStorage, "3", "cpu", numel)   persistent id: storage "3" of the archive
//       0, shape, strides, False, OrderedDict())             offset, view, requires_grad, hooks
//
// Dtypes without a storage class (float8, unsigned integers) use _rebuild_tensor_v3 with an untyped storage, as in
// torch. Storages are numbered in the order of their first use, which is also their order in the archive.
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/state_path.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tensor.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"
#include "fsdp/checkpoint/source/strided_read.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

constexpr std::array<const char*, 4> kModelKeys = {"model", "state_dict", "model_state_dict", "module"};

class StateEncoder {
 public:
  explicit StateEncoder(const StateDict& contents)
      : contents_(contents), keys_(BranchKeysOf(contents)), storage_of_(contents.entries().size(), kNone) {
    // Tensors among param_groups get storages of their own, numbered in the same sequence as all others.
    pickle_.write_tensor = [this](const LiteralTensor& tensor) {
      EncodeTorchTensor(pickle_, absl::StrCat(storages_.size()), tensor.dtype, tensor.shape);
      storages_.push_back({true, static_cast<uint32_t>(literals_.size())});
      literals_.push_back(tensor);
    };
    pickle_.write_reference = [this](const std::string& name) { EncodeExtra(StateKey::Extra(name)); };
  }

  absl::StatusOr<EncodedTorchState> Encode() {
    FSDP_ASSIGN_OR_RETURN(parts_, PartsOfExtras(contents_));
    const auto& entries = contents_.entries();
    const bool is_plain = std::all_of(entries.begin(), entries.end(), [](const StateDict::Entry& entry) {
      const std::optional<std::string> name = NameOfModelValue(entry.first);
      return name ? IsNameInModule(*name) : entry.first.section == Section::kModel;
    });
    if (is_plain) {
      FSDP_RETURN_IF_ERROR(EncodeModel());
    } else {
      pickle_.EmptyDict();
      pickle_.Mark();
      // Without a model the key is there all the same, unless an extra value has it.
      if (HoldsModel(contents_) || keys_.model == kModelKeys[0]) {
        pickle_.String(keys_.model);
        FSDP_RETURN_IF_ERROR(EncodeModel());
      }
      FSDP_RETURN_IF_ERROR(EncodeOptimizer());
      FSDP_RETURN_IF_ERROR(EncodeExtras());
      pickle_.SetItems();
    }
    return EncodedTorchState{std::move(pickle_).Finish(), std::move(storages_), std::move(literals_)};
  }

 private:
  void EncodeTensor(const StateKey& key, const ShardedTensor& tensor) {
    const auto entry = static_cast<uint32_t>(*contents_.IndexOf(key));
    uint32_t& storage = storage_of_[entry];
    // The first use numbers the storage; aliases then share it.
    if (storage == kNone) {
      storage = static_cast<uint32_t>(storages_.size());
      storages_.push_back({false, entry});
    }
    EncodeTorchTensor(pickle_, absl::StrCat(storage), tensor.dtype, tensor.shape);
  }

  // The name of a value that is written among the tensors of the model.
  std::optional<std::string> NameInModel(const StateKey& key) const {
    return parts_.empty() || parts_.count(key) == 0 ? NameOfModelValue(key) : std::nullopt;
  }

  absl::Status EncodeModel() {
    pickle_.EmptyDict();
    pickle_.Mark();
    for (const auto& [key, value] : contents_.entries()) {
      if (const std::optional<std::string> name = NameInModel(key)) {
        if (contents_.contains(StateKey::Model(*name)) || contents_.aliases.count(*name) != 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("a tensor and a value of the model are both named ", Quote(*name)));
        }
        pickle_.String(*name);
        EncodeExtra(key);
        continue;
      }
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (key.section != Section::kModel || tensor == nullptr) continue;
      pickle_.String(key.fqn);
      EncodeTensor(key, *tensor);
    }
    for (const auto& [alias, target] : contents_.aliases) {
      const StateKey key = StateKey::Model(target);
      const ShardedTensor* tensor = contents_.FindTensor(key);
      // An alias that is also a tensor of its own must not appear twice in the dict.
      if (tensor == nullptr || contents_.contains(StateKey::Model(alias))) continue;
      pickle_.String(alias);
      EncodeTensor(key, *tensor);
    }
    pickle_.SetItems();
    return absl::OkStatus();
  }

  // Groups state by parameter, in the order in which the state dict first names each one.
  absl::Status EncodeOptimizer() {
    absl::flat_hash_map<std::string_view, uint32_t> order;  // of parameters, by name
    std::vector<std::pair<uint32_t, uint32_t>> state;       // parameter and entry
    for (size_t i = 0; i < contents_.entries().size(); ++i) {
      const std::optional<StateName> name = StateOfKey(contents_.entries()[i].first);
      if (!name) continue;
      const auto place = static_cast<uint32_t>(order.size());
      state.emplace_back(order.try_emplace(name->fqn, place).first->second, static_cast<uint32_t>(i));
    }
    // Freed before param_groups are parsed: with a million parameters both are large.
    order = {};
    // By parameter, then by entry: each parameter's dict must be written in one piece.
    std::sort(state.begin(), state.end());
    const std::string* text = contents_.FindText(StateKey::ParamGroups());
    if (state.empty() && text == nullptr) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(const PythonJson groups, TorchParamGroups(text == nullptr ? "[]" : *text));
    pickle_.String(keys_.optim);
    pickle_.EmptyDict();
    pickle_.Mark();
    pickle_.String("state");
    pickle_.EmptyDict();
    pickle_.Mark();
    for (size_t i = 0; i < state.size();) {
      const uint32_t parameter = state[i].first;
      const StateName first = *StateOfKey(contents_.entries()[state[i].second].first);
      pickle_.String(std::string(first.fqn));
      StateMembers members;
      for (; i < state.size() && state[i].first == parameter; ++i) {
        const StateName name = *StateOfKey(contents_.entries()[state[i].second].first);
        members.push_back({SplitStatePath(name.path), state[i].second});
      }
      FSDP_RETURN_IF_ERROR(EncodeState(members, 0));
    }
    pickle_.SetItems();
    pickle_.String("param_groups");
    pickle_.Python(groups);
    pickle_.SetItems();
    return absl::OkStatus();
  }

  // Values of a parameter's state, by their paths; the entries of contents_.
  using StateMembers = std::vector<std::pair<std::vector<StatePathElement>, uint32_t>>;

  // The dict or list of `members`, whose paths are equal before element `depth`.
  absl::Status EncodeState(const StateMembers& members, size_t depth) {
    std::vector<std::pair<StatePathElement, StateMembers>> inner;  // by element, in the order of the first
    std::map<std::pair<std::string, bool>, size_t> index;
    for (const auto& [path, entry] : members) {
      const auto [at, is_new] = index.try_emplace({path[depth].key, path[depth].is_index}, inner.size());
      if (is_new) inner.push_back({path[depth], {}});
      inner[at->second].second.push_back({path, entry});
    }
    const bool is_list = SortIndices(inner);
    if (is_list) {
      pickle_.EmptyList();
    } else {
      pickle_.EmptyDict();
    }
    pickle_.Mark();
    for (const auto& [element, below] : inner) {
      if (!is_list) pickle_.String(element.key);
      const bool is_value = below[0].first.size() == depth + 1;
      if (is_value && below.size() > 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            Quote(contents_.entries()[below[0].second].first.ToString()), " and ",
            Quote(contents_.entries()[below[1].second].first.ToString()), " would be a value and what is in it"));
      }
      if (!is_value) FSDP_RETURN_IF_ERROR(EncodeState(below, depth + 1));
      if (is_value) EncodeValue(below[0].second);
    }
    if (is_list) {
      pickle_.Appends();
    } else {
      pickle_.SetItems();
    }
    return absl::OkStatus();
  }

  // True if these are all elements of a list, which are then in order.
  static bool SortIndices(std::vector<std::pair<StatePathElement, StateMembers>>& inner) {
    std::vector<std::pair<StatePathElement, StateMembers>> sorted(inner.size());
    for (auto& element : inner) {
      size_t index = 0;
      const bool fits = element.first.is_index && absl::SimpleAtoi(element.first.key, &index) && index < sorted.size();
      if (!fits || !sorted[index].second.empty()) return false;
      sorted[index] = element;
    }
    inner = std::move(sorted);
    return true;
  }

  void EncodeValue(uint32_t entry) {
    const auto& [key, value] = contents_.entries()[entry];
    if (const auto* tensor = std::get_if<ShardedTensor>(&value)) return EncodeTensor(key, *tensor);
    pickle_.Python(PythonOfText(std::get<std::string>(value)));
  }

  absl::Status EncodeExtras() {
    for (const auto& [key, value] : contents_.entries()) {
      if (key.section != Section::kExtra || parts_.count(key) != 0 || StateOfKey(key) || NameInModel(key)) continue;
      // The members of one dict: a reader would take the extra value for the model.
      if (IsNameOfBranch(key, keys_, contents_)) {
        return absl::InvalidArgumentError(
            absl::StrCat("extra value ", Quote(key.fqn), " would take the place of the ", key.fqn,
                         " in a torch file; ConvertOptions::model_only leaves it out, and hdf5 holds both"));
      }
      pickle_.String(key.fqn);
      EncodeExtra(key);
    }
    return absl::OkStatus();
  }

  // Precondition: `contents_` holds `key`, which PartsOfExtras has checked for references.
  void EncodeExtra(const StateKey& key) {
    const StateValue& value = contents_.entries()[*contents_.IndexOf(key)].second;
    if (const auto* tensor = std::get_if<ShardedTensor>(&value)) return EncodeTensor(key, *tensor);
    pickle_.Python(PythonOfText(std::get<std::string>(value)));
  }

  static constexpr uint32_t kNone = UINT32_MAX;

  const StateDict& contents_;
  const BranchKeys keys_;
  std::set<StateKey> parts_;  // of extra values, which are only inside them
  PickleWriter pickle_;
  std::vector<EncodedTorchState::Storage> storages_;
  std::vector<LiteralTensor> literals_;
  std::vector<uint32_t> storage_of_;  // by entry of contents_: into storages_
};

void SetDefault(PythonJson& group, const char* name, PythonJson value) {
  if (!group.contains(name)) group[name] = std::move(value);
}

// True for a group that an optimizer of PyTorch wrote. Such a group gets no defaults: it did not have a missing option
// when it was saved, and adding "decoupled_weight_decay" would turn an Adam into an AdamW.
bool IsOfTorch(const PythonJson& group) {
  constexpr const char* kOnlyTorchHas[] = {"amsgrad", "maximize",   "foreach",        "fused",
                                           "alpha",   "capturable", "differentiable", "decoupled_weight_decay"};
  return std::any_of(std::begin(kOnlyTorchHas), std::end(kOnlyTorchHas),
                     [&](const char* name) { return group.contains(name); });
}

// Adds options that PyTorch's AdamW ("betas") and SGD ("momentum") expect and this project's do not have, with the
// values that match our optimizers.
void AddTorchOptions(PythonJson& group) {
  if (IsOfTorch(group)) return;
  if (group.contains("betas")) {
    SetDefault(group, "amsgrad", false);
    SetDefault(group, "maximize", false);
    SetDefault(group, "foreach", nullptr);
    SetDefault(group, "capturable", false);
    SetDefault(group, "differentiable", false);
    SetDefault(group, "fused", nullptr);
    SetDefault(group, "decoupled_weight_decay", true);
  } else if (group.contains("momentum") && !group.contains("ns_steps")) {  // with it, Muon
    SetDefault(group, "dampening", 0);
    SetDefault(group, "nesterov", false);
    SetDefault(group, "maximize", false);
    SetDefault(group, "foreach", nullptr);
    SetDefault(group, "differentiable", false);
    SetDefault(group, "fused", nullptr);
  }
}

}  // namespace

BranchKeys BranchKeysOf(const StateDict& contents) {
  const auto is_plain = [&](const std::string& name) {
    const std::string* const text = contents.FindText(StateKey::Extra(name));
    return text == nullptr || text->find(kReferenceTag) == text->npos || !HoldsReference(PythonOfText(*text));
  };
  const auto first_free = [&](const std::array<const char*, 4>& names) -> std::string {
    const auto is_free = [&](const char* name) { return !contents.contains(StateKey::Extra(name)); };
    const auto* const free = std::find_if(names.begin(), names.end(), is_free);
    // A dict with tensors of the usual name would be a second model for every reader.
    return free == names.end() || !is_plain(names[0]) ? names[0] : *free;
  };
  return {first_free(kModelKeys), first_free({"optim", "optimizer", "optimizer_state_dict", "optim_state_dict"})};
}

bool HoldsModel(const StateDict& contents) {
  return std::any_of(contents.entries().begin(), contents.entries().end(), [](const StateDict::Entry& entry) {
    return entry.first.section == Section::kModel || NameOfModelValue(entry.first);
  });
}

bool HoldsOptimizer(const StateDict& contents) {
  return std::any_of(contents.entries().begin(), contents.entries().end(), [](const StateDict::Entry& entry) {
    return entry.first.section == Section::kParamGroups || entry.first.section == Section::kOptimState ||
           StateOfKey(entry.first);
  });
}

bool IsNameOfBranch(const StateKey& key, const BranchKeys& keys, const StateDict& contents) {
  if (key.section != Section::kExtra) return false;
  return key.fqn == keys.model || (key.fqn == keys.optim && HoldsOptimizer(contents));
}

void EncodeTorchTensor(PickleWriter& pickle, const std::string& key, DType dtype, const Shape& shape) {
  const std::string_view storage = StorageGlobal(dtype);
  const bool is_untyped = IsUntypedStorage(storage);
  pickle.Global(is_untyped ? "torch._utils._rebuild_tensor_v3" : "torch._utils._rebuild_tensor_v2");
  pickle.Mark();
  pickle.Mark();
  pickle.String("storage");
  pickle.Global(storage);
  pickle.String(key);
  pickle.String("cpu");
  pickle.Integer(is_untyped ? shape.numel() * SizeOf(dtype) : shape.numel());
  pickle.Tuple();
  pickle.PersistentId();
  pickle.Integer(0);  // storage offset
  pickle.Integers(shape.dims());
  pickle.Integers(RowMajorStrides(shape));
  pickle.Bool(false);  // requires_grad
  pickle.Global("collections.OrderedDict");
  pickle.EmptyTuple();
  pickle.Reduce();  // backward hooks
  if (is_untyped) pickle.Global(absl::StrCat("torch.", std::string(DTypeName(dtype))));
  pickle.Tuple();
  pickle.Reduce();
}

absl::StatusOr<EncodedTorchState> EncodeTorchState(const StateDict& contents) {
  return StateEncoder(contents).Encode();
}

absl::StatusOr<PythonJson> TorchParamGroups(const std::string& json) {
  PythonJson groups = ParsePythonJson(json);
  if (!groups.is_array()) return absl::DataLossError("optim/param_groups is not a JSON array");
  if (!NamesOnlyTorchGlobals(groups)) {
    return absl::InvalidArgumentError("optim/param_groups names a Python object that no state dict needs: refused");
  }
  if (HoldsReference(groups)) return absl::InvalidArgumentError("optim/param_groups refers to an extra value: refused");
  for (PythonJson& group : groups) {
    if (!group.is_object()) return absl::DataLossError("a group of optim/param_groups is not a JSON object");
    group = WithTensorsForNumbers(group);
    AddTorchOptions(group);
    if (group.contains("betas") && group["betas"].is_array()) {
      PythonJson tuple;
      tuple[kPythonTag] = "tuple";
      tuple["items"] = group["betas"];
      group["betas"] = std::move(tuple);
    }
  }
  return groups;
}

}  // namespace fsdp
