// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/universal_encoding.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_encoding.h"
#include "fsdp/checkpoint/source/model_value.h"
#include "fsdp/checkpoint/source/optimizer_value.h"

namespace fsdp {
namespace {

using Section = StateKey::Section;

constexpr char kDsVersion[] = "0.19.8";  // whose layout this is; loading compares it with the oldest that it accepts
constexpr char kLossScaler[] = "loss_scaler";
constexpr char kGlobalSteps[] = "global_steps";  // a plain extra value of that name is the same number

// Entries of the model file that follow from the checkpoint.
constexpr std::array<std::string_view, 9> kOfLayout = {
    "module",        "optimizer",     "param_shapes",  "frozen_param_shapes",      "frozen_param_fragments",
    "shared_params", "dp_world_size", "mp_world_size", "universal_checkpoint_info"};

// Entries of the optimizer's file, which are extra values when a checkpoint has been read.
constexpr std::array<std::string_view, 4> kOfOptimizer = {kLossScaler, "dynamic_loss_scale", "overflow", "clip_grad"};

template <typename Names>
bool IsAmong(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A pickle with the storages that it names.
class Archive {
 public:
  explicit Archive(const StateDict& contents) : contents_(contents) {
    pickle_.write_tensor = [this](const LiteralTensor& tensor) { Literal(tensor); };
    pickle_.write_reference = [this](const std::string& name) { Extra(StateKey::Extra(name)); };
  }

  PickleWriter& pickle() { return pickle_; }

  // Of two tensors of one entry the second is a view of the first's storage.
  void Tensor(const StateDict::Entry& entry) {
    const auto& tensor = std::get<ShardedTensor>(entry.second);
    const auto [storage, is_new] = storage_of_.try_emplace(&entry, storages_.size());
    EncodeTorchTensor(pickle_, absl::StrCat(storage->second), tensor.dtype, tensor.shape);
    if (!is_new) return;
    storages_.push_back(
        {.elements = &entry.first, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
  }

  void Literal(const LiteralTensor& tensor) {
    EncodeTorchTensor(pickle_, absl::StrCat(storages_.size()), tensor.dtype, tensor.shape);
    storages_.push_back(
        {.elements = tensor.bytes, .interval = {0, tensor.shape.numel()}, .element_size = SizeOf(tensor.dtype)});
  }

  // Precondition: `contents` holds `key`, of which PartsOfExtras has checked the references.
  void Extra(const StateKey& key) {
    const StateDict::Entry& entry = contents_.entries()[*contents_.IndexOf(key)];
    if (std::holds_alternative<ShardedTensor>(entry.second)) return Tensor(entry);
    pickle_.Python(PythonOfText(std::get<std::string>(entry.second)));
  }

  TorchArchivePlan Finish() && { return TorchArchivePlan(0, std::move(pickle_).Finish(), std::move(storages_)); }

 private:
  const StateDict& contents_;
  PickleWriter pickle_;
  std::vector<TorchStorageSource> storages_;
  absl::flat_hash_map<const StateDict::Entry*, size_t> storage_of_;
};

// torch.Size(dims)
void EncodeSize(PickleWriter& pickle, const Shape& shape) {
  pickle.Global("torch.Size");
  pickle.Mark();
  pickle.Integers(shape.dims());
  pickle.Tuple();
  pickle.Reduce();
}

// A list of dicts from names to shapes, one for each group.
void EncodeShapes(PickleWriter& pickle, const UniversalPlan& plan) {
  pickle.EmptyList();
  pickle.Mark();
  for (const UniversalGroup& group : plan.groups) {
    pickle.EmptyDict();
    pickle.Mark();
    for (const size_t number : group.parameters) {
      const UniversalParameter& parameter = plan.parameters[number];
      pickle.String(parameter.name);
      EncodeSize(pickle, std::get<ShardedTensor>(parameter.fp32->second).shape);
    }
    pickle.SetItems();
  }
  pickle.Appends();
}

// The extra values of the program that are in no other one.
std::vector<const StateDict::Entry*> ExtrasOf(const StateDict& contents, const std::set<StateKey>& parts) {
  std::vector<const StateDict::Entry*> extras;
  for (const StateDict::Entry& entry : contents.entries()) {
    const StateKey& key = entry.first;
    if (key.section != Section::kExtra || parts.count(key) != 0) continue;
    if (!StateOfKey(key) && !NameOfModelValue(key)) extras.push_back(&entry);
  }
  return extras;
}

void EncodeModule(Archive& archive, const UniversalPlan& plan, const StateDict& contents,
                  const std::set<StateKey>& parts) {
  PickleWriter& pickle = archive.pickle();
  pickle.EmptyDict();
  pickle.Mark();
  for (const StateDict::Entry* const entry : plan.module) {
    pickle.String(entry->first.fqn);
    archive.Tensor(*entry);
  }
  for (const auto& [key, value] : contents.entries()) {
    const std::optional<std::string> name = NameOfModelValue(key);
    if (!name || parts.count(key) != 0) continue;
    pickle.String(*name);
    archive.Extra(key);
  }
  pickle.SetItems();
}

// Names of tied parameters, by their other names.
void EncodeShared(PickleWriter& pickle, const StateDict& contents) {
  pickle.EmptyDict();
  pickle.Mark();
  for (const auto& [alias, target] : contents.aliases) {
    const bool is_shared =
        contents.FindTensor(StateKey::Model(target)) != nullptr && !contents.contains(StateKey::Model(alias));
    if (!is_shared) continue;
    pickle.String(alias);
    pickle.String(target);
  }
  pickle.SetItems();
}

void EncodeCount(PickleWriter& pickle, const std::string& name, int64_t value) {
  pickle.String(name);
  pickle.Integer(value);
}

// The object that DeepSpeed pickles, from its members; another value as it is.
void EncodeLossScaler(Archive& archive, const StateKey& key, const StateDict& contents) {
  const std::string* const text = contents.FindText(key);
  const PythonJson value = text == nullptr ? PythonJson() : PythonOfText(*text);
  const auto dynamic = value.is_object() ? value.find("dynamic") : value.end();
  if (!value.is_object() || value.find("cur_scale") == value.end() || dynamic == value.end() ||
      !dynamic->is_boolean()) {
    return archive.Extra(key);
  }
  PickleWriter& pickle = archive.pickle();
  pickle.Global(
      absl::StrCat("deepspeed.runtime.fp16.loss_scaler.", dynamic->get<bool>() ? "DynamicLossScaler" : "LossScaler"));
  pickle.EmptyTuple();
  pickle.NewObject();
  pickle.Python(value);
  pickle.Build();
}

}  // namespace

absl::Status CheckExtrasOfUniversal(const StateDict& contents) {
  FSDP_ASSIGN_OR_RETURN(const std::set<StateKey> parts, PartsOfExtras(contents));
  for (const StateDict::Entry* const extra : ExtrasOf(contents, parts)) {
    const std::string& name = extra->first.fqn;
    const bool is_counter = name == kGlobalSteps && std::holds_alternative<std::string>(extra->second);
    if (IsAmong(kOfLayout, name) || (name == kGlobalSteps && !is_counter)) {
      return absl::InvalidArgumentError(absl::StrCat("extra value ", Quote(name),
                                                     " would take the place of DeepSpeed's ",
                                                     "own entry: leave it out with --exclude, or give it another name "
                                                     "with --rename"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchArchivePlan> EncodeUniversalModel(const UniversalPlan& plan, const StateDict& contents,
                                                      int64_t step, int world_size) {
  FSDP_ASSIGN_OR_RETURN(const std::set<StateKey> parts, PartsOfExtras(contents));
  Archive archive(contents);
  PickleWriter& pickle = archive.pickle();
  pickle.EmptyDict();
  pickle.Mark();
  pickle.String("module");
  EncodeModule(archive, plan, contents, parts);
  pickle.String("optimizer");
  pickle.None();
  pickle.String("param_shapes");
  EncodeShapes(pickle, plan);
  pickle.String("shared_params");
  EncodeShared(pickle, contents);
  EncodeCount(pickle, "dp_world_size", world_size);
  EncodeCount(pickle, "mp_world_size", 1);
  EncodeCount(pickle, kGlobalSteps, std::max<int64_t>(step, 0));
  bool has_skipped = false;
  bool has_version = false;
  for (const StateDict::Entry* const extra : ExtrasOf(contents, parts)) {
    const std::string& name = extra->first.fqn;
    if (name == kGlobalSteps || IsAmong(kOfOptimizer, name)) continue;
    has_skipped = has_skipped || name == "skipped_steps";
    has_version = has_version || name == "ds_version";
    pickle.String(name);
    archive.Extra(extra->first);
  }
  if (!has_skipped) EncodeCount(pickle, "skipped_steps", 0);
  if (!has_version) {
    pickle.String("ds_version");
    pickle.String(kDsVersion);
  }
  pickle.SetItems();
  return std::move(archive).Finish();
}

absl::StatusOr<TorchArchivePlan> EncodeUniversalOptimizer(const UniversalPlan& plan, const StateDict& contents,
                                                          const std::optional<LiteralTensor>& step) {
  Archive archive(contents);
  PickleWriter& pickle = archive.pickle();
  PythonJson groups = PythonJson::array();
  for (const UniversalGroup& group : plan.groups) {
    PythonJson options = group.options;
    options["params"] = PythonJson::array({groups.size()});
    groups.push_back(std::move(options));
  }
  pickle.EmptyDict();
  pickle.Mark();
  for (const std::string_view name : kOfOptimizer) {
    const StateKey key = StateKey::Extra(std::string(name));
    if (!contents.contains(key)) continue;
    pickle.String(name);
    name == kLossScaler ? EncodeLossScaler(archive, key, contents) : archive.Extra(key);
  }
  pickle.String("ds_version");
  pickle.String(kDsVersion);
  pickle.String("param_groups");  // for ZeRO 1 and 2
  pickle.Python(groups);
  pickle.String("optimizer_state_dict");  // for ZeRO 3
  pickle.EmptyDict();
  pickle.Mark();
  pickle.String("state");
  pickle.EmptyDict();
  pickle.Mark();
  if (step) {
    pickle.Integer(0);
    pickle.EmptyDict();
    pickle.Mark();
    pickle.String("step");
    archive.Literal(*step);
    pickle.SetItems();
  }
  pickle.SetItems();
  pickle.String("param_groups");
  pickle.Python(groups);
  pickle.SetItems();
  pickle.SetItems();
  return std::move(archive).Finish();
}

TorchArchivePlan EncodeUniversalTensor(const StateDict::Entry& entry) {
  const StateDict none;
  Archive archive(none);
  PickleWriter& pickle = archive.pickle();
  pickle.EmptyDict();
  pickle.Mark();
  EncodeCount(pickle, "cat_dim", 0);
  pickle.String("param");
  archive.Tensor(entry);
  pickle.SetItems();
  return std::move(archive).Finish();
}

TorchArchivePlan EncodeUniversalStep(const LiteralTensor& step) {
  const StateDict none;
  Archive archive(none);
  archive.Literal(step);
  return std::move(archive).Finish();
}

}  // namespace fsdp
