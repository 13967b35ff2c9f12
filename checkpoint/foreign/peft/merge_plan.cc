// SPDX-License-Identifier: Apache-2.0
//
// Names first: the adapter names modules of the model in the training program, and a file may lack the first part of
// them or have one more ("transformer." of GPT-2). One such rule must fit all modules. Then each module's shapes decide
// which way round its weight is: PEFT looks at the type of the module, which no file has, and fan_in_fan_out says it
// only for square weights.
#include "fsdp/checkpoint/foreign/peft/merge_plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/peft/adapter_tensors.h"
#include "fsdp/checkpoint/foreign/peft/numbers_by_pattern.h"
#include "fsdp/checkpoint/source/weight_files.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxRank = 65'536;
constexpr size_t kMaxSavedModules = 64;

// Of comparing patterns with names, in states and bytes: a second or two.
constexpr double kMostWork = 2e9;

bool CanMerge(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Whether the components of `part` are components of `name`, one after the other.
bool HasComponents(const std::string& name, const std::string& part) {
  for (size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

// How the adapter's names become the base's: without the first `strip` bytes, behind `prefix`.
struct NameRule {
  size_t strip = 0;
  std::string prefix = {};

  std::string Of(const std::string& name) const { return absl::StrCat(prefix, name.substr(strip)); }
};

// Everything is checked before the first element is read: names, shapes, dtypes, ranks and the orientation of weights.
// The plan then says for each tensor of the base what changes it; what it does not name stays as it is.
class Planner {
 public:
  Planner(const StateDict& base, const StateDict& adapter, const AdapterConfig& config)
      : base_(base),
        adapter_(adapter),
        config_(config),
        targets_(config.target_modules.begin(), config.target_modules.end()) {}

  absl::StatusOr<MergePlan> Plan() {
    FSDP_ASSIGN_OR_RETURN(tensors_, SortAdapter(adapter_));
    FSDP_ASSIGN_OR_RETURN(ranks_, NumbersByPattern::Create(config_.rank_pattern));
    FSDP_ASSIGN_OR_RETURN(alphas_, NumbersByPattern::Create(config_.alpha_pattern));
    FSDP_RETURN_IF_ERROR(CheckWork());
    FSDP_RETURN_IF_ERROR(CheckTargets());
    FSDP_RETURN_IF_ERROR(FindRule());
    for (const auto& [name, key] : tensors_.whole) FSDP_RETURN_IF_ERROR(AddWhole(name, key));
    FSDP_RETURN_IF_ERROR(CheckModulesToSave());
    for (const auto& [module, lora] : tensors_.modules) FSDP_RETURN_IF_ERROR(AddModule(module, lora));
    if (!square_.empty() && !contradicts_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weight of module ", Quote(square_),
                       " is square, and \"fan_in_fan_out\" does not say whether it is stored ",
                       "transposed, because it is wrong about module ", Quote(contradicts_)));
    }
    AddNotes();
    return std::move(plan_);
  }

 private:
  const ShardedTensor& OfAdapter(const StateKey& key) const { return *adapter_.FindTensor(key); }

  // Patterns come from a file and run over names from another: the product of both is bounded.
  absl::Status CheckWork() const {
    double bytes = 0;
    for (const auto& [module, lora] : tensors_.modules) bytes += static_cast<double>(module.size());
    const auto modules = static_cast<double>(tensors_.modules.size());
    if (ranks_.Work(modules, bytes) + alphas_.Work(modules, bytes) > kMostWork) {
      return absl::InvalidArgumentError(absl::StrCat("\"rank_pattern\" and \"alpha_pattern\" of ", kAdapterConfigName,
                                                     " are too many for ", tensors_.modules.size(), " modules"));
    }
    if (config_.modules_to_save.size() > kMaxSavedModules) {
      return absl::InvalidArgumentError(absl::StrCat("\"modules_to_save\" of ", kAdapterConfigName, " has ",
                                                     config_.modules_to_save.size(), " names, expected at most ",
                                                     kMaxSavedModules));
    }
    return absl::OkStatus();
  }

  // Modules with LoRA weights are those that target_modules names, so that a config of another adapter is noticed.
  absl::Status CheckTargets() {
    if (tensors_.modules.empty() && tensors_.whole.empty()) {
      return absl::InvalidArgumentError("the adapter has no tensors");
    }
    if (config_.target_modules.empty()) return absl::OkStatus();
    for (const auto& [module, lora] : tensors_.modules) {
      if (IsTarget(module)) continue;
      return absl::DataLossError(absl::StrCat("module ", Quote(module), " has LoRA weights, but \"target_modules\" of ",
                                              kAdapterConfigName, " does not name it: is the config of this adapter?"));
    }
    return absl::OkStatus();
  }

  // PEFT matches whole components at the end of a name.
  bool IsTarget(const std::string& module) const {
    if (module.size() > kMaxAdapterNameBytes) return false;
    for (size_t at = 0;;) {
      if (targets_.contains(module.substr(at))) return true;
      const size_t dot = module.find('.', at);
      if (dot == module.npos) return false;
      at = dot + 1;
    }
  }

  bool IsInBase(const std::string& name) const { return base_.Resolve(StateKey::Model(name)).has_value(); }

  // The names that the base must have: the weights of modules, or, without any, the whole tensors.
  std::vector<std::string> NeededNames() const {
    std::vector<std::string> names;
    for (const auto& [module, lora] : tensors_.modules) names.push_back(module + ".weight");
    if (!names.empty()) return names;
    for (const auto& [name, key] : tensors_.whole) names.push_back(name);
    return names;
  }

  bool Fits(const NameRule& rule, const std::vector<std::string>& names) const {
    return std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.size() > rule.strip && IsInBase(rule.Of(name)); });
  }

  // The base's names may differ from the adapter's by a prefix: it may be the inner model of the one that was trained
  // ("model." is missing), or a part of a larger one. A rule counts only if it maps every name, and only if it is the
  // only one that does.
  absl::Status FindRule() {
    const std::vector<std::string> names = NeededNames();
    if (Fits({}, names)) return absl::OkStatus();
    const std::string& first = names.front();
    std::vector<NameRule> rules;
    const std::string start = first.substr(0, first.find('.') + 1);
    const bool is_common =
        std::all_of(names.begin(), names.end(), [&](const std::string& name) { return absl::StartsWith(name, start); });
    if (const NameRule rule = {.strip = start.size()}; is_common && Fits(rule, names)) rules.push_back(rule);
    for (const auto& [key, value] : base_.entries()) {
      if (key.section != StateKey::Section::kModel || !absl::EndsWith(key.fqn, "." + first)) continue;
      const NameRule rule = {.prefix = key.fqn.substr(0, key.fqn.size() - first.size())};
      if (Fits(rule, names)) rules.push_back(rule);
    }
    if (rules.size() == 1) {
      rule_ = rules.front();
      plan_.notes.push_back(absl::StrCat("the adapter's ", Quote(first), " is ", Quote(rule_.Of(first)),
                                         " in the base, and all its other modules are named in the same way"));
      return absl::OkStatus();
    }
    const auto missing =
        std::find_if(names.begin(), names.end(), [&](const std::string& name) { return !IsInBase(name); });
    return absl::InvalidArgumentError(absl::StrCat(
        "the base has no tensor ", Quote(*missing), ", which the adapter changes: ",
        rules.empty() ? "is it the model that the adapter was trained on" : "several of its parts have such names",
        config_.base_model.empty() ? "" : absl::StrCat(", ", Printable(config_.base_model)), "?",
        absl::EndsWith(*missing, "lm_head.weight")
            ? " A base that ties lm_head to its embedding does not store it: store both, with tie_word_embeddings false"
            : ""));
  }

  // A whole tensor takes the place of the base's, in the base's dtype; a new one is kept as it is.
  absl::Status AddWhole(const std::string& name, const StateKey& key) {
    const ShardedTensor& tensor = OfAdapter(key);
    const StateKey in_base = StateKey::Model(rule_.Of(name));
    const ShardedTensor* const old = base_.FindTensor(in_base);
    if (old == nullptr) return AddNew(name, in_base, key);
    if (old->shape != tensor.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quote(key.fqn), " has the shape ", tensor.shape.ToString(), ", and ",
                       Quote(in_base.fqn), " of the base ", old->shape.ToString(),
                       ": a model that was resized for training must be resized before its adapter is merged"));
    }
    if (old->dtype != tensor.dtype && !(IsFloatingPoint(old->dtype) && IsFloatingPoint(tensor.dtype))) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(key.fqn), " is ",
                                                     std::string(DTypeName(tensor.dtype)), ", and in the base ",
                                                     std::string(DTypeName(old->dtype))));
    }
    plan_.changes[in_base].whole = key;
    replaced_.push_back(in_base.fqn);
    return absl::OkStatus();
  }

  // modules_to_save may add a module, such as a classifier, but a head that the base shares with its embedding is no
  // new one: a config.json that ties both would hide it.
  absl::Status AddNew(const std::string& name, const StateKey& in_base, const StateKey& key) {
    const auto alias = base_.aliases.find(in_base.fqn);
    std::string tied = alias != base_.aliases.end() ? alias->second : "";
    for (const auto& [other, value] : base_.entries()) {
      const auto* const tensor = std::get_if<ShardedTensor>(&value);
      const bool is_embedding = absl::StrContains(other.fqn, "embed") || absl::StrContains(other.fqn, "wte");
      if (tied.empty() && tensor != nullptr && is_embedding && tensor->shape == OfAdapter(key).shape) tied = other.fqn;
    }
    if (!tied.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the adapter has a ", Quote(name), " of its own, which the base does not have, or has as ",
                       Quote(tied), ": store both in the base, with tie_word_embeddings false in its config.json"));
    }
    const bool is_saved = std::any_of(config_.modules_to_save.begin(), config_.modules_to_save.end(),
                                      [&](const std::string& module) { return HasComponents(name, module); });
    if (!is_saved) {
      return absl::InvalidArgumentError(absl::StrCat("the base has no tensor ", Quote(in_base.fqn),
                                                     ", which the adapter replaces, and \"modules_to_save\" of ",
                                                     kAdapterConfigName, " does not name it as new"));
    }
    plan_.changes[in_base].whole = key;
    plan_.new_keys.push_back(in_base);
    return absl::OkStatus();
  }

  // PEFT names modules for tasks that a model need not have: only those that the base has must be in the adapter.
  absl::Status CheckModulesToSave() const {
    for (const std::string& module : config_.modules_to_save) {
      const bool is_there = std::any_of(tensors_.whole.begin(), tensors_.whole.end(),
                                        [&](const auto& whole) { return HasComponents(whole.first, module); });
      if (is_there) continue;
      for (const auto& [key, value] : base_.entries()) {
        if (key.section != StateKey::Section::kModel || !HasComponents(key.fqn, module)) continue;
        return absl::DataLossError(absl::StrCat("\"modules_to_save\" of ", kAdapterConfigName, " names ", Quote(module),
                                                ", of which the base has ", Quote(key.fqn),
                                                ", and the adapter has no tensor of it"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddModule(const std::string& module, const LoraModule& lora) {
    const std::string name = rule_.Of(module + ".weight");
    const std::optional<StateKey> key = base_.Resolve(StateKey::Model(name));
    const ShardedTensor* const weight = key ? base_.FindTensor(*key) : nullptr;
    if (weight == nullptr) return absl::InvalidArgumentError(absl::StrCat("the base has no tensor ", Quote(name)));
    if (key->fqn != name) {
      plan_.notes.push_back(absl::StrCat(Quote(name), " and ", Quote(key->fqn),
                                         " are one tensor in the base: the adapter of one changes both"));
    }
    TensorChange& change = plan_.changes[*key];
    if (change.low_rank) {
      return absl::InvalidArgumentError(absl::StrCat("two modules of the adapter change ", Quote(key->fqn),
                                                     ", which they share in the base, one being ", Quote(module)));
    }
    FSDP_ASSIGN_OR_RETURN(change.low_rank, LowRankOf(module, lora, *weight));
    scales_.insert(change.low_rank->scale);
    ++changed_;
    return lora.bias ? AddBias(module, *lora.bias, change.low_rank->scale) : absl::OkStatus();
  }

  absl::Status WrongShapes(const std::string& module, const LoraModule& lora, const ShardedTensor& weight) const {
    return absl::InvalidArgumentError(absl::StrCat("module ", Quote(module), ": A ", OfAdapter(lora.a).shape.ToString(),
                                                   " and B ", OfAdapter(lora.b).shape.ToString(),
                                                   " do not change a weight of the shape ", weight.shape.ToString(),
                                                   ": is it the model that the adapter was trained on?"));
  }

  // The rank that the config states and the shape of A must agree: the scale is computed from the config's.
  absl::StatusOr<LowRank> LowRankOf(const std::string& module, const LoraModule& lora, const ShardedTensor& weight) {
    const ShardedTensor& a = OfAdapter(lora.a);
    const ShardedTensor& b = OfAdapter(lora.b);
    for (const ShardedTensor* tensor : {&weight, &a, &b}) {
      if (CanMerge(tensor->dtype)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("module ", Quote(module), ": its ", tensor == &weight ? "weight in the base" : "LoRA weight",
                       " is ", std::string(DTypeName(tensor->dtype)),
                       ", expected float64, float32, bfloat16 or float16: a quantized base is merged before it is "
                       "quantized"));
    }
    if (a.shape.rank() < 2 || b.shape.rank() < 2) return WrongShapes(module, lora, weight);
    LowRank change = {
        .a = lora.a, .b = lora.b, .rank = a.shape.dim(0), .in = a.shape.row_numel(), .out = b.shape.dim(0)};
    const double rank = ranks_.Of(module, config_.rank);
    if (change.rank < 1 || change.rank > kMaxRank || rank != static_cast<double>(change.rank)) {
      return absl::DataLossError(absl::StrCat("module ", Quote(module), ": its rank is ", rank, " by ",
                                              kAdapterConfigName, ", and ", change.rank, " by the shape of lora_A"));
    }
    const double alpha = alphas_.Of(module, config_.alpha);
    change.scale = alpha / (config_.use_rslora ? std::sqrt(rank) : rank);
    if (b.shape.row_numel() != change.rank) return WrongShapes(module, lora, weight);
    FSDP_ASSIGN_OR_RETURN(change.is_transposed, IsTransposed(module, lora, weight));
    return change;
  }

  // Shapes tell, unless the weight is square; then fan_in_fan_out does, and the plan is refused if other modules show
  // that it is wrong.
  absl::StatusOr<bool> IsTransposed(const std::string& module, const LoraModule& lora, const ShardedTensor& weight) {
    const Shape& shape = weight.shape;
    const Shape& a = OfAdapter(lora.a).shape;
    const int64_t out = OfAdapter(lora.b).shape.dim(0);
    const bool is_direct = shape.rank() == a.rank() && shape.dim(0) == out &&
                           std::equal(shape.dims().begin() + 1, shape.dims().end(), a.dims().begin() + 1);
    const bool is_transposed = shape.rank() == 2 && a.rank() == 2 && shape.dim(0) == a.dim(1) && shape.dim(1) == out;
    if (lora.is_embedding && is_transposed) return true;
    if (lora.is_embedding || (!is_direct && !is_transposed)) return WrongShapes(module, lora, weight);
    if (is_direct && is_transposed) {
      square_ = module;
      return config_.fan_in_fan_out;
    }
    // Only matrices can be either; a convolution never is transposed.
    if (is_transposed != config_.fan_in_fan_out && shape.rank() == 2) contradicts_ = module;
    return is_transposed;
  }

  absl::Status AddBias(const std::string& module, const StateKey& bias, double scale) {
    const std::string name = rule_.Of(module + ".bias");
    const ShardedTensor* const old = base_.FindTensor(StateKey::Model(name));
    if (old == nullptr || old->shape != OfAdapter(bias).shape || !CanMerge(old->dtype) ||
        !CanMerge(OfAdapter(bias).dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(bias.fqn), " is added to ", Quote(name),
                                                     ", which the base does not have in its shape, ",
                                                     OfAdapter(bias).shape.ToString(), ", as floating-point numbers"));
    }
    TensorChange& change = plan_.changes[StateKey::Model(name)];
    change.added = bias;
    change.scale = scale;
    return absl::OkStatus();
  }

  // Modules that target_modules names and that have no weights in the adapter: PEFT would leave them as they are, too.
  void AddUnchanged() {
    if (config_.target_modules.empty() || config_.selects_layers) return;
    int64_t unchanged = 0;
    std::string first;
    for (const auto& [key, value] : base_.entries()) {
      const auto* const tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr || tensor->shape.rank() < 2 || !absl::EndsWith(key.fqn, ".weight")) continue;
      if (!IsTarget(key.fqn.substr(0, key.fqn.size() - 7)) || plan_.changes.count(key) != 0) continue;
      if (unchanged++ == 0) first = key.fqn;
    }
    if (unchanged == 0) return;
    plan_.notes.push_back(absl::StrCat(unchanged, unchanged == 1 ? " weight" : " weights",
                                       " of modules that target_modules names, the first being ", Quote(first),
                                       unchanged == 1 ? ", stays as it is" : ", stay as they are",
                                       ": the adapter has nothing for them"));
  }

  void AddNotes() {
    if (changed_ > 0) {
      plan_.notes.push_back(absl::StrCat("LoRA changes ", changed_, changed_ == 1 ? " weight" : " weights", ", with ",
                                         scales_.size() == 1 ? "the scale " : "scales from ", *scales_.begin(),
                                         scales_.size() == 1 ? "" : absl::StrCat(" to ", *scales_.rbegin())));
    }
    if (!replaced_.empty()) {
      plan_.notes.push_back(absl::StrCat("replaced by the adapter's: ", SomeOf(replaced_)));
    }
    if (!plan_.new_keys.empty()) {
      std::vector<std::string> names;
      for (const StateKey& key : plan_.new_keys) names.push_back(key.fqn);
      plan_.notes.push_back(
          absl::StrCat("new, from the adapter: ", SomeOf(names), "; a config.json of the base does not know of it"));
    }
    AddUnchanged();
  }

  const StateDict& base_;
  const StateDict& adapter_;
  const AdapterConfig& config_;
  const absl::flat_hash_set<std::string> targets_;
  AdapterTensors tensors_;
  NumbersByPattern ranks_;
  NumbersByPattern alphas_;
  NameRule rule_;
  std::string square_;       // a module whose weight fits both ways; may be empty
  std::string contradicts_;  // a module whose weight is not as fan_in_fan_out says; may be empty
  std::set<double> scales_;
  int64_t changed_ = 0;
  std::vector<std::string> replaced_;
  MergePlan plan_;
};

}  // namespace

absl::Status CheckCanMerge(const AdapterConfig& config) {
  if (config.obstacles.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the adapter cannot be merged: ", kAdapterConfigName, ": ", absl::StrJoin(config.obstacles, "; ")));
}

absl::StatusOr<MergePlan> PlanMerge(const StateDict& base, const StateDict& adapter, const AdapterConfig& config) {
  FSDP_RETURN_IF_ERROR(CheckCanMerge(config));
  return Planner(base, adapter, config).Plan();
}

}  // namespace fsdp
