// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_tree.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/whole_optimizer.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

constexpr char kModule[] = "module";
constexpr char kOptimizer[] = "optimizer";

// The tree {"module": parameters and buffers, "optimizer": {"state", "param_groups"}, ...}. A parameter is read from
// its float32 master where there is one; the copy in the module, which is rounded, is compared in shape and left out
// with a note.
class TreeBuilder {
 public:
  TreeBuilder(ModelStates model, TrainedStates trained, const DeepSpeedFiles& files, const TensorSourceOptions& options,
              const TorchLeafTypes& types)
      : model_(std::move(model)), trained_(std::move(trained)), files_(files), options_(options), types_(types) {}

  absl::StatusOr<DeepSpeedTree> Build() {
    FSDP_ASSIGN_OR_RETURN(TorchNode module, Module());
    tree_.root.Add(kModule, std::move(module));
    FSDP_RETURN_IF_ERROR(AddOptimizer());
    AddOthers(model_.others);
    AddOthers(trained_.others);
    SetRoles();
    for (std::string& left_out : model_.left_out) tree_.left_out.push_back(std::move(left_out));
    for (std::string& left_out : trained_.left_out) tree_.left_out.push_back(std::move(left_out));
    if (low_precision_ > 0) {
      tree_.notes.push_back(absl::StrCat("the model's ", low_precision_,
                                         low_precision_ == 1 ? " parameter" : " parameters", " in ",
                                         std::string(DTypeName(low_dtype_)), ", such as ", Quote(a_low_precision_),
                                         ", are left out: they are rounded from those that are read"));
    }
    if (model_.widened > 0) {
      tree_.notes.push_back(absl::StrCat(model_.widened, model_.widened == 1 ? " buffer" : " buffers",
                                         " in low precision became float32, like the parameters"));
    }
    return std::move(tree_);
  }

 private:
  // In the order of the module's dict. The entries of the other files follow.
  absl::StatusOr<TorchNode> Module() {
    TorchNode module;
    module.TakeForm(model_.module);
    module.Reserve(static_cast<int64_t>(model_.module.members().size()));
    for (const auto& [name, member] : model_.module.members()) {
      FSDP_ASSIGN_OR_RETURN(TorchNode node, NodeOf(name, member));
      module.Add(name, std::move(node));
    }
    for (const std::string& name : trained_.order) {
      if (module.Find(name) == nullptr) module.Add(name, TorchNode::Tensor(trained_.parameters.at(name)));
    }
    for (const auto& [name, number] : model_.frozen_views) {
      if (module.Find(name) == nullptr) module.Add(name, TorchNode::Tensor(number));
    }
    for (const auto& [alias, source] : model_.shared) {
      if (module.Find(alias) != nullptr) continue;
      FSDP_ASSIGN_OR_RETURN(const int number, NumberOfSource(alias, source));
      module.Add(alias, TorchNode::Tensor(number));
    }
    return module;
  }

  // The tensor with the elements of `name` in float32; nullopt without one.
  std::optional<int> MasterOf(const std::string& name) const {
    const auto trained = trained_.parameters.find(name);
    if (trained != trained_.parameters.end()) return trained->second;
    const auto frozen = model_.frozen_views.find(name);
    return frozen == model_.frozen_views.end() ? std::nullopt : std::make_optional(frozen->second);
  }

  // shared_params says which of two tied names has the elements.
  absl::StatusOr<int> NumberOfSource(const std::string& alias, const std::string& source) const {
    if (const std::optional<int> master = MasterOf(source)) return *master;
    const TorchNode* const stored = model_.module.Find(source);
    const bool has_data = stored != nullptr && stored->kind() == Kind::kTensor && model_.shared.count(source) == 0;
    if (has_data && !IsUnfilled(*stored)) return stored->tensor();
    return absl::DataLossError(absl::StrCat("shared_params says that ", Quote(alias), " is ", Quote(source),
                                            ", which has no elements in any file"));
  }

  // In this order: a master, the master of the name it is tied to, the module's own tensor.
  absl::StatusOr<TorchNode> NodeOf(const std::string& name, const TorchNode& member) {
    const std::optional<int> master = MasterOf(name);
    const auto alias = model_.shared.find(name);
    if (!master && alias != model_.shared.end()) {
      FSDP_ASSIGN_OR_RETURN(const int number, NumberOfSource(name, alias->second));
      return TorchNode::Tensor(number);
    }
    if (!master) {
      if (member.kind() == Kind::kTensor && IsUnfilled(member) && !IsBuffer(name)) {
        return absl::DataLossError(absl::StrCat(
            "the parameter ", Quote(name), " has no elements in the model file, and param_shapes does not have it"));
      }
      return member;
    }
    FSDP_RETURN_IF_ERROR(Compare(name, member, *master));
    return TorchNode::Tensor(*master);
  }

  // ZeRO 3 has a parameter's place in the module without its elements.
  bool IsUnfilled(const TorchNode& member) const {
    return files_.is_partitioned && member.kind() == Kind::kTensor && types_[member.tensor()].shape == Shape({0});
  }

  bool IsBuffer(const std::string& name) {
    if (buffers_.empty()) {
      const TorchNode* const names = FindValue(model_.others, "buffer_names");
      const std::optional<std::vector<PythonJson>> items = names == nullptr ? std::nullopt : ItemsOf(names->value());
      for (const PythonJson& item : items.value_or(std::vector<PythonJson>())) {
        if (item.is_string()) buffers_.insert(item.get<std::string>());
      }
    }
    return buffers_.contains(name);
  }

  // The module's copy must have the shape.
  absl::Status Compare(const std::string& name, const TorchNode& member, int master) {
    if (member.kind() != Kind::kTensor || IsUnfilled(member)) return absl::OkStatus();
    const TorchLeafType copy = types_[member.tensor()];
    const TorchLeafType type = types_[master];
    if (copy.shape != type.shape) {
      return absl::DataLossError(absl::StrCat("the parameter ", Quote(name), " has the shape ", copy.shape.ToString(),
                                              " in \"module\", but ", type.shape.ToString(),
                                              " in param_shapes or its own file: the files are of two saves"));
    }
    if (copy.dtype != type.dtype && low_precision_++ == 0) {
      a_low_precision_ = name;
      low_dtype_ = copy.dtype;
    }
    return absl::OkStatus();
  }

  absl::Status AddOptimizer() {
    if (options_.model_only) return absl::OkStatus();
    if (!trained_.optimizer.members().empty()) {
      tree_.root.Add(kOptimizer, std::move(trained_.optimizer));
      if (!model_.optimizer.members().empty()) {
        tree_.left_out.emplace_back("\"optimizer\" of the model file (the optimizer files have the state)");
      }
      return absl::OkStatus();
    }
    if (model_.optimizer.members().empty()) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(WholeOptimizer whole, ReadWholeOptimizer(std::move(model_.optimizer)));
    if (whole.optimizer.is_branch() && !whole.optimizer.members().empty()) {
      tree_.root.Add(kOptimizer, std::move(whole.optimizer));
    }
    for (std::string& left_out : whole.left_out) tree_.left_out.push_back(std::move(left_out));
    if (!whole.note.empty()) tree_.notes.push_back(std::move(whole.note));
    AddOthers(whole.others);
    return absl::OkStatus();
  }

  // Entries of the program take the first place: a name of both is the program's, and a note names ours.
  void AddOthers(TorchNode& others) {
    (void)others.Consume([&](const std::string& name, TorchNode& member) {
      if (tree_.root.Find(name) != nullptr) {
        tree_.left_out.push_back(
            absl::StrCat(Quote(name), " of the optimizer (the program has an entry of that name)"));
      } else {
        tree_.root.Add(name, std::move(member));
      }
      return absl::OkStatus();
    });
  }

  void SetRoles() {
    const auto is_given = [&](TensorRole::Section section) {
      return std::any_of(options_.map.begin(), options_.map.end(),
                         [&](const TensorRole& role) { return role.section == section; });
    };
    tree_.roles = options_.map;
    if (!is_given(TensorRole::Section::kModel)) tree_.roles.push_back({kModule, TensorRole::Section::kModel});
    const bool has_optimizer = tree_.root.Find(kOptimizer) != nullptr;
    if (has_optimizer && !is_given(TensorRole::Section::kOptim)) {
      tree_.roles.push_back({kOptimizer, TensorRole::Section::kOptim});
    }
  }

  ModelStates model_;
  TrainedStates trained_;
  const DeepSpeedFiles& files_;
  const TensorSourceOptions& options_;
  const TorchLeafTypes& types_;
  DeepSpeedTree tree_;
  absl::flat_hash_set<std::string> buffers_;
  int64_t low_precision_ = 0;
  std::string a_low_precision_;
  DType low_dtype_ = DType::kBFloat16;
};

}  // namespace

absl::StatusOr<DeepSpeedTree> TreeOfDeepSpeed(ModelStates model, TrainedStates trained, const DeepSpeedFiles& files,
                                              const TensorSourceOptions& options, const TorchLeafTypes& types) {
  return TreeBuilder(std::move(model), std::move(trained), files, options, types).Build();
}

}  // namespace fsdp
