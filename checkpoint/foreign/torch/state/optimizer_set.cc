// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/optimizer_set.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/branch_facts.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"

namespace fsdp {
namespace {

// The member of a group that has the branch of its optimizer, if there are several.
constexpr char kOptimizerOfGroup[] = "optimizer";

// One that an earlier conversion gave it stays.
void SetBranch(PythonJson& group, const std::string& branch) {
  if (!group.contains(kOptimizerOfGroup)) group[kOptimizerOfGroup] = branch;
}

// A file may have several optimizers (a GAN's two, Muon and AdamW). Two questions decide how they are read: do their
// ids continue one numbering of the model's parameters (then they are read as one), and whose parameters are they (then
// each is read with its model). An optimizer for which neither has an answer becomes extra values, with the reason in a
// note.
class SetReader {
 public:
  SetReader(const std::vector<ParameterScope>& scopes, const TorchLeafTypes& tensors, const StateDict& model,
            const TorchStateOptions& options, const TorchOptimizerSink& sink)
      : scopes_(scopes), tensors_(tensors), model_(model), options_(options), sink_(sink) {}

  absl::StatusOr<OptimizerSet> Read(std::vector<FoundOptimizer> optimizers) {
    are_several_ = optimizers.size() > 1;
    FSDP_ASSIGN_OR_RETURN(const bool is_done, ReadTogether(optimizers));
    if (is_done) return std::move(set_);
    std::vector<ParameterScope> scopes;
    for (FoundOptimizer& optimizer : optimizers) {
      absl::StatusOr<ParameterScope> scope = ScopeOf(optimizer);
      if (scope.ok()) {
        scopes.push_back(*std::move(scope));
      } else {
        optimizer.reason = std::string(scope.status().message());
        scopes.emplace_back();
      }
    }
    FSDP_RETURN_IF_ERROR(CheckOwners(scopes, optimizers));
    for (size_t i = 0; i < optimizers.size(); ++i) FSDP_RETURN_IF_ERROR(ReadOne(scopes[i], std::move(optimizers[i])));
    if (!groups_.empty()) set_.param_groups = groups_.dump(-1, ' ', false, PythonJson::error_handler_t::replace);
    return std::move(set_);
  }

 private:
  ParameterScope All() const { return scopes_.size() == 1 ? scopes_[0] : ParameterScope(); }

  // The optimizers as one whose ids do not collide; nullopt if one of them does not go by id.
  absl::StatusOr<std::optional<TorchNode>> Together(const std::vector<FoundOptimizer>& optimizers) const {
    PythonJson groups = PythonJson::array();
    TorchNode state;
    int64_t first = 0;
    for (const FoundOptimizer& optimizer : optimizers) {
      const TorchNode* const own = optimizer.node.Find("param_groups");
      if (own == nullptr) return std::optional<TorchNode>();
      FSDP_ASSIGN_OR_RETURN(PythonJson json, own->ToJson(tensors_, options_.read));
      int64_t end = 0;
      for (PythonJson& group : json) {
        const bool has_params = group.is_object() && group.contains("params") && group["params"].is_array();
        if (!has_params) return std::optional<TorchNode>();
        for (PythonJson& param : group["params"]) {
          if (!param.is_number_integer()) return std::optional<TorchNode>();
          const auto id = param.get<int64_t>();
          if (id < 0 || id > (int64_t{1} << 40)) return std::optional<TorchNode>();
          end = std::max(end, id + 1);
          param = first + id;
        }
        SetBranch(group, optimizer.branch);
        groups.push_back(std::move(group));
      }
      TorchNode storage;
      const TorchNode* const stored = optimizer.node.Find("state");
      const TorchNode& of_ids = stored == nullptr ? storage : Expanded(*stored, storage);
      for (const auto& [key, member] : of_ids.members()) {
        int64_t id = 0;
        if (!absl::SimpleAtoi(key, &id)) return std::optional<TorchNode>();
        state.Add(absl::StrCat(first + id), member);
      }
      first += end;
    }
    TorchNode node;
    node.Add("state", std::move(state));
    node.Add("param_groups", TorchNode::Value(std::move(groups)));
    return std::make_optional(std::move(node));
  }

  // False if they have to be read one by one.
  // FailedPrecondition means that the ids do not fit the model: not damage, only another reading.
  absl::StatusOr<bool> ReadTogether(const std::vector<FoundOptimizer>& optimizers) {
    if (!are_several_ || scopes_.size() != 1) return false;
    FSDP_ASSIGN_OR_RETURN(std::optional<TorchNode> node, Together(optimizers));
    if (!node) return false;
    absl::StatusOr<std::string> groups = ReadTorchOptimizer(*node, tensors_, model_, options_, All(), sink_);
    if (absl::IsFailedPrecondition(groups.status())) return false;
    FSDP_RETURN_IF_ERROR(groups.status());
    set_.param_groups = *std::move(groups);
    return true;
  }

  // Gives a reason to optimizers that have a parameter in common: at most one of them can be the parameter's.
  absl::Status CheckOwners(const std::vector<ParameterScope>& scopes, std::vector<FoundOptimizer>& optimizers) const {
    if (!are_several_) return absl::OkStatus();
    std::map<std::string, size_t> owners;
    std::vector<std::string> reasons(optimizers.size());
    for (size_t i = 0; i < optimizers.size(); ++i) {
      if (!optimizers[i].reason.empty()) continue;
      const absl::StatusOr<std::vector<std::string>> parameters =
          ParametersOfOptimizer(optimizers[i].node, tensors_, model_, options_, scopes[i]);
      if (!parameters.ok()) continue;  // reading it gives the error
      for (const std::string& parameter : *parameters) {
        const auto [at, is_new] = owners.try_emplace(parameter, i);
        if (is_new || at->second == i) continue;
        const std::string shared = absl::StrCat(Quote(parameter), " would have state of it and of ");
        reasons[i] = absl::StrCat(shared, Quote(optimizers[at->second].branch));
        reasons[at->second] = absl::StrCat(shared, Quote(optimizers[i].branch));
      }
    }
    for (size_t i = 0; i < optimizers.size(); ++i) {
      if (!reasons[i].empty()) optimizers[i].reason = reasons[i];
    }
    return absl::OkStatus();
  }

  absl::Status ReadOne(const ParameterScope& scope, FoundOptimizer optimizer) {
    absl::StatusOr<std::string> groups = absl::FailedPreconditionError(optimizer.reason);
    if (optimizer.reason.empty()) {
      groups = ReadTorchOptimizer(optimizer.node, tensors_, model_, options_, scope, sink_);
    }
    if (absl::IsFailedPrecondition(groups.status())) {
      optimizer.reason = std::string(groups.status().message());
      set_.unread.push_back(std::move(optimizer));
      return absl::OkStatus();
    }
    FSDP_RETURN_IF_ERROR(groups.status());
    if (!are_several_) {
      set_.param_groups = *std::move(groups);  // as it is: it may be long
    } else if (!groups->empty()) {
      PythonJson own = ParsePythonJson(*groups);
      for (PythonJson& group : own) {
        SetBranch(group, optimizer.branch);
        groups_.push_back(std::move(group));
      }
    }
    return absl::OkStatus();
  }

  // Ids of all models' parameters follow the order in which the program listed the models, and in a file they may have
  // another one. Models of equal shapes could be either.
  absl::Status CheckOrderOfModels(const FoundOptimizer& optimizer) const {
    if (!HasState(optimizer.node)) return absl::OkStatus();
    const auto parameters_in = [&](const StateDict& model) {
      return ParametersOfOptimizer(optimizer.node, tensors_, model, options_, ParameterScope());
    };
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> parameters, parameters_in(model_));
    for (const std::vector<size_t>& order : OtherOrders(scopes_.size())) {
      const absl::StatusOr<std::vector<std::string>> others = parameters_in(ModelInOrder(order));
      if (!others.ok() || *others == parameters) continue;
      size_t at = 0;
      while (order[at] == at) ++at;
      return absl::FailedPreconditionError(absl::StrCat(
          "its ids go through ", scopes_.size(), " models, and the file does not say whether ",
          Quote(absl::StrCat(scopes_[at].prefix, "*")), " or ", Quote(absl::StrCat(scopes_[order[at]].prefix, "*")),
          " comes first; save it by name, with "
          "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict"));
    }
    return absl::OkStatus();
  }

  static bool HasState(const TorchNode& optimizer) {
    const TorchNode* const state = optimizer.Find("state");
    return state != nullptr && (!state->members().empty() || !state->value().empty());
  }

  // The orders of `count` models other than theirs; of more than a few, those with two exchanged.
  static std::vector<std::vector<size_t>> OtherOrders(size_t count) {
    constexpr size_t kFew = 4;
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::vector<size_t>> orders;
    while (count <= kFew && std::next_permutation(order.begin(), order.end())) orders.push_back(order);
    for (size_t i = 0; count > kFew && i < count; ++i) {
      for (size_t j = i + 1; j < count; ++j) {
        orders.push_back(order);
        std::swap(orders.back()[i], orders.back()[j]);
      }
    }
    return orders;
  }

  // The tensors of the models, model by model.
  StateDict ModelInOrder(const std::vector<size_t>& order) const {
    StateDict ordered;
    ordered.aliases = model_.aliases;
    for (const size_t i : order) {
      for (const auto& [key, value] : model_.entries()) {
        if (key.section == StateKey::Section::kModel && ScopeOfName(key.fqn) == i) ordered.Set(key, value);
      }
    }
    return ordered;
  }

  // The model with the tensor: the one with the longest prefix.
  size_t ScopeOfName(const std::string& fqn) const {
    size_t best = 0;
    for (size_t i = 0; i < scopes_.size(); ++i) {
      const bool is_longer =
          scopes_[i].prefix.size() >= scopes_[best].prefix.size() || !absl::StartsWith(fqn, scopes_[best].prefix);
      if (is_longer && absl::StartsWith(fqn, scopes_[i].prefix)) best = i;
    }
    return best;
  }

  // The model that has the optimizer's parameters.
  // In order: the caller's word, the only model that fits, then the only one whose name shares a word with the
  // optimizer's ("generator" and "generator_optimizer").
  absl::StatusOr<ParameterScope> ScopeOf(const FoundOptimizer& optimizer) const {
    if (!optimizer.prefix.empty()) {
      const auto given = std::find_if(scopes_.begin(), scopes_.end(),
                                      [&](const ParameterScope& scope) { return scope.prefix == optimizer.prefix; });
      return given != scopes_.end() ? *given : ParameterScope{.prefix = optimizer.prefix};
    }
    const auto fits = [&](const ParameterScope& scope) {
      return ParametersOfOptimizer(optimizer.node, tensors_, model_, options_, scope).ok();
    };
    if (scopes_.size() < 2 || scopes_.size() > kMostModels) return All();
    if (fits(ParameterScope())) {
      FSDP_RETURN_IF_ERROR(CheckOrderOfModels(optimizer));
      return All();
    }
    std::vector<const ParameterScope*> fitting;
    for (const ParameterScope& scope : scopes_) {
      if (fits(scope)) fitting.push_back(&scope);
    }
    if (fitting.empty()) return ParameterScope();  // whose error it gets
    if (fitting.size() == 1) return *fitting[0];
    const auto is_other = [&](const ParameterScope* scope) { return !ShareAWord(optimizer.branch, scope->prefix); };
    std::vector<const ParameterScope*> named = fitting;
    named.erase(std::remove_if(named.begin(), named.end(), is_other), named.end());
    // A name that says only "optimizer" belongs to a name that says only "model".
    const auto plain =
        std::find_if(fitting.begin(), fitting.end(), [](const ParameterScope* scope) { return scope->prefix.empty(); });
    if (named.empty() && plain != fitting.end() && SaysOnlyWhatItIs(optimizer.branch)) return **plain;
    if (named.size() == 1) return *named[0];
    const std::string first = Quote(absl::StrCat(fitting[0]->prefix, "*"));
    return absl::FailedPreconditionError(
        absl::StrCat("its parameters can be ", first, " and ", Quote(absl::StrCat(fitting[1]->prefix, "*")),
                     "; TensorSourceOptions::map=", optimizer.branch, "=optim.PREFIX says whose they are"));
  }

  const std::vector<ParameterScope>& scopes_;
  const TorchLeafTypes& tensors_;
  const StateDict& model_;
  const TorchStateOptions& options_;
  const TorchOptimizerSink& sink_;
  bool are_several_ = false;
  PythonJson groups_ = PythonJson::array();  // of several optimizers
  OptimizerSet set_;
};

}  // namespace

absl::StatusOr<OptimizerSet> ReadOptimizers(std::vector<FoundOptimizer> optimizers,
                                            const std::vector<ParameterScope>& scopes, const TorchLeafTypes& tensors,
                                            const StateDict& model, const TorchStateOptions& options,
                                            const TorchOptimizerSink& sink) {
  return SetReader(scopes, tensors, model, options, sink).Read(std::move(optimizers));
}

}  // namespace fsdp
