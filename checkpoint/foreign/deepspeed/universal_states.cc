// SPDX-License-Identifier: Apache-2.0
//
// A folder's FILE.pt is {"param": tensor, ...}, or the tensor itself (ZeRO 3), of the parameter's shape; step.pt is a
// number. Folders of buffers and tied parameters have only fp32.pt: the model file has them, in their own dtypes. So do
// those of parameters that never had a gradient. All folders with state must have the same files, so that one that is
// missing is noticed.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/named_groups.h"
#include "fsdp/checkpoint/foreign/deepspeed/trained_states.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Kind = TorchNode::Kind;

constexpr char kFp32[] = "fp32";
constexpr char kSuffix[] = ".pt";

// The names in a directory, sorted. An error of the disk must not make it look empty.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& path, bool directories) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> listed, PosixFileSystem().List(path));
  std::vector<std::string> names;
  for (const std::string& name : listed) {
    FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(JoinPath(path, name)));
    if ((type == fs::file_type::directory) == directories) names.push_back(name);
  }
  return names;
}

// A universal checkpoint has a folder zero/PARAMETER for each parameter with fp32.pt and a file for each state of the
// optimizer. Its model files, if they were copied, have names, shapes and buffers; without them the folders' names must
// do.
class UniversalReader {
 public:
  UniversalReader(const DeepSpeedFiles& files, const ModelStates& model, const TensorSourceOptions& options,
                  StoredTensors& tensors)
      : files_(files), model_(model), options_(options), tensors_(tensors) {}

  absl::StatusOr<TrainedStates> Read() {
    has_model_ = !files_.model.empty();
    std::vector<std::string> parameters;
    for (const NamedShapes& group : model_.groups) {
      for (const auto& [name, shape] : group) {
        parameters.push_back(name);
        shapes_.emplace(name, shape);
      }
    }
    if (!has_model_) {
      FSDP_ASSIGN_OR_RETURN(parameters, NamesIn(JoinPath(files_.directory, kDeepSpeedZero), true));
    }
    FSDP_RETURN_IF_ERROR(ReadOptimizerState());
    TorchNode state;
    for (const std::string& name : parameters) FSDP_RETURN_IF_ERROR(ReadParameter(name, state));
    FSDP_RETURN_IF_ERROR(PlaceFrozen());
    if (has_flat_ && !has_model_) {
      result_.left_out.emplace_back(
          "the shapes of the parameters and the buffers (each parameter is flat, because the model files of ZeRO 3 are "
          "not there: copy *_model_states.pt of the checkpoint that this one was made from)");
    }
    if (options_.model_only) return std::move(result_);
    if (without_state_ > 0 && states_) {
      result_.left_out.push_back(absl::StrCat("the optimizer's state of ", without_state_,
                                              without_state_ == 1 ? " parameter, " : " parameters, such as ",
                                              Quote(a_without_state_),
                                              " (there are no files of it: parameters that never had a gradient "
                                              "have none)"));
    }
    FSDP_ASSIGN_OR_RETURN(std::optional<TorchNode> groups, Groups(state));
    result_.optimizer.Add("state", std::move(state));
    result_.optimizer.Add("param_groups", groups ? *std::move(groups) : TorchNode::Value(PythonJson::array()));
    return std::move(result_);
  }

 private:
  // A path below TAG.
  static std::string InZero(const std::string& name) { return absl::StrCat(kDeepSpeedZero, "/", name); }

  absl::Status ReadParameter(const std::string& name, TorchNode& state) {
    // A name that is not a folder's could lead out of the checkpoint.
    FSDP_RETURN_IF_ERROR(CheckFileName(name));
    const std::string folder = InZero(name);
    std::vector<std::string> states;
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(folder));
    for (const std::string& file : files) {
      if (absl::EndsWith(file, kSuffix)) states.push_back(file.substr(0, file.size() - sizeof(kSuffix) + 1));
    }
    FSDP_RETURN_IF_ERROR(CheckStates(folder, states));
    TorchNode own;
    std::optional<Shape> shape;
    if (const auto known = shapes_.find(name); known != shapes_.end()) shape = known->second;
    // fp32 first: without a model file it has the shape.
    std::stable_partition(states.begin(), states.end(), [](const std::string& file) { return file == kFp32; });
    for (const std::string& file : states) {
      if (options_.model_only && file != kFp32) continue;
      FSDP_ASSIGN_OR_RETURN(TorchNode value, ReadFile(absl::StrCat(folder, "/", file, kSuffix), shape));
      if (file == kFp32) {
        result_.parameters.emplace(name, value.tensor());
        result_.order.push_back(name);
      } else {
        own.Add(file, std::move(value));
      }
    }
    if (!own.members().empty()) {
      AddScalars(own);
      state.Add(name, std::move(own));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder) const {
    const std::string path = JoinPath(files_.directory, folder);
    FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(path));
    if (type == fs::file_type::directory) return NamesIn(path, false);
    return absl::NotFoundError(
        absl::StrCat(path, " is missing: a universal checkpoint has a folder of each parameter"));
  }

  // The first folder with state decides which states there are.
  absl::Status CheckStates(const std::string& folder, const std::vector<std::string>& states) {
    const std::string path = JoinPath(files_.directory, folder);
    if (std::find(states.begin(), states.end(), kFp32) == states.end()) {
      return absl::NotFoundError(absl::StrCat(path, "/fp32.pt is missing: copy the whole checkpoint"));
    }
    if (states.size() == 1) {
      // Without a model file, perhaps a buffer or another name of a parameter.
      if (has_model_ && without_state_++ == 0) a_without_state_ = folder;
      return absl::OkStatus();
    }
    if (!states_) {
      states_ = states;
      first_ = path;
    }
    // Both ways: either may be the incomplete one.
    FSDP_RETURN_IF_ERROR(CheckHas(path, states, *states_));
    return CheckHas(first_, *states_, states);
  }

  static absl::Status CheckHas(const std::string& path, const std::vector<std::string>& states,
                               const std::vector<std::string>& wanted) {
    for (const std::string& state : wanted) {
      if (std::find(states.begin(), states.end(), state) != states.end()) continue;
      return absl::NotFoundError(
          absl::StrCat(path, "/", state, ".pt is missing, which other parameters have: copy the whole checkpoint"));
    }
    return absl::OkStatus();
  }

  // The tensor or number in `name`. Sets an unknown `shape`; a tensor with dimensions must have it.
  // The files are {"param": tensor, ...} of ds_to_universal, or the plain tensor.
  absl::StatusOr<TorchNode> ReadFile(const std::string& name, std::optional<Shape>& shape) {
    uint32_t number = 0;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TorchFile> file, tensors_.OpenFile(name, options_, &number));
    TorchNode root = file->TakeRoot();
    const TorchNode* const param = root.is_branch() ? root.Find("param") : &root;
    const bool is_number = param != nullptr && param->kind() == Kind::kValue && param->value().is_number();
    if (is_number && !absl::EndsWith(name, "/fp32.pt")) return *param;
    if (param == nullptr || param->kind() != Kind::kTensor) {
      return absl::DataLossError(absl::StrCat(file->path(), " has no tensor \"param\""));
    }
    const Shape found = file->archive().tree.tensors.shape(param->tensor());
    if (!shape) {
      shape = found;
      has_flat_ = has_flat_ || !root.is_branch();
    }
    // ZeRO 3 writes flat tensors.
    const bool is_flat = StoredTensors::RunOf(number, *file, param->tensor()) && found.numel() == shape->numel();
    if (found != *shape && is_flat) return TorchNode::Tensor(tensors_.AddView(number, *file, param->tensor(), &*shape));
    if (found != *shape && (found.rank() > 0 || absl::EndsWith(name, "/fp32.pt"))) {
      return absl::DataLossError(
          absl::StrCat(file->path(), " has the shape ", found.ToString(), ", but the parameter ", shape->ToString()));
    }
    return TorchNode::Tensor(tensors_.AddView(number, *file, param->tensor()));
  }

  // optimizer_state.pt: param_groups, the loss scale and, of ZeRO 3, the state of rank 0 as it was, of which only the
  // step is needed.
  absl::Status ReadOptimizerState() {
    if (options_.model_only && has_model_) return absl::OkStatus();
    uint32_t number = 0;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TorchFile> file,
                          tensors_.OpenFile(InZero(kDeepSpeedOptimizerState), options_, &number));
    TorchNode root = file->TakeRoot();
    Expand(root);
    if (!root.is_branch() || root.is_list) return absl::DataLossError(absl::StrCat(file->path(), " is not a dict"));
    FSDP_ASSIGN_OR_RETURN(const std::optional<int64_t> stage, FindCount(root, "zero_stage"));
    if (!has_model_ && stage.value_or(0) < 3) {
      return absl::NotFoundError(absl::StrCat(JoinPath(files_.directory, kDeepSpeedModelFile),
                                              " is missing: it has the names, shapes and buffers"));
    }
    if (options_.model_only) return absl::OkStatus();
    if (TorchNode* const groups = root.Find("param_groups")) groups_ = tensors_.Import(number, *file, *groups);
    if (TorchNode* const optimizer = root.Find("optimizer_state_dict")) {
      FSDP_RETURN_IF_ERROR(Annotate(TakeScalars(number, *file, *optimizer), file->path()));
    }
    static constexpr const char* kStructure[] = {"param_groups",
                                                 "optimizer_state_dict",
                                                 "fp32_flat_groups",
                                                 "zero_stage",
                                                 "partition_count",
                                                 "group_paddings",
                                                 "param_alignment_paddings",
                                                 "ds_version",
                                                 "universal_checkpoint_info"};
    return root.Consume([&](const std::string& name, TorchNode& member) {
      const bool is_structure =
          std::any_of(std::begin(kStructure), std::end(kStructure), [&](const char* known) { return name == known; });
      if (!is_structure) result_.others.Add(name, tensors_.Import(number, *file, member));
      return absl::OkStatus();
    });
  }

  // The scalars that all sub-groups have alike: the folders of ZeRO 3 have no step.pt.
  // They are kept for every parameter, as PyTorch's optimizers have them, if all groups agree on them.
  absl::Status TakeScalars(uint32_t number, const TorchFile& file, TorchNode& optimizer) {
    Expand(optimizer);
    TorchNode* const states = optimizer.Find("state");
    if (states == nullptr) return absl::OkStatus();
    Expand(*states);
    std::map<std::string, std::string> first;  // bytes or text, by name
    std::set<std::string> different;
    for (const auto& [unit, member] : states->members()) {
      TorchNode state = member;
      Expand(state);
      for (const auto& [name, value] : state.members()) {
        FSDP_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, ScalarOf(file, value));
        if (!bytes) continue;
        const auto [known, is_new] = first.emplace(name, *bytes);
        if (!is_new && known->second != *bytes) different.insert(name);
        TorchNode copy = value;
        if (is_new) scalars_.Add(name, tensors_.Import(number, file, copy));
      }
    }
    for (const std::string& name : different) {
      result_.left_out.push_back(absl::StrCat(Quote(name),
                                              " of the optimizer's state (it differs between groups, and no "
                                              "file says which parameters are in which)"));
      TorchNode kept;
      for (const auto& [other, value] : scalars_.members()) {
        if (other != name) kept.Add(other, value);
      }
      scalars_ = std::move(kept);
    }
    return absl::OkStatus();
  }

  // nullopt for a value that is neither a number nor a tensor without dimensions.
  static absl::StatusOr<std::optional<std::string>> ScalarOf(const TorchFile& file, const TorchNode& value) {
    if (value.kind() == Kind::kValue && value.value().is_number()) return std::make_optional(value.value().dump());
    if (value.kind() != Kind::kTensor) return std::optional<std::string>();
    if (file.archive().tree.tensors.shape(value.tensor()).rank() > 0) return std::optional<std::string>();
    FSDP_ASSIGN_OR_RETURN(std::string bytes, StoredTensors::ScalarBytes(file, value.tensor()));
    return std::make_optional(std::move(bytes));
  }

  void AddScalars(TorchNode& own) const {
    for (const auto& [name, value] : scalars_.members()) own.Add(name, value);  // the folder's own value stays
  }

  // Frozen parameters that are parts of ranks: the model files of ZeRO 3.
  absl::Status PlaceFrozen() {
    if (!files_.is_partitioned || model_.frozen.empty()) {
      return tensors_.SetParameters({}, {}, {kFp32}, {});
    }
    std::vector<FlatSpace> spaces = {FlatSpace(static_cast<int>(model_.frozen_runs.size()))};
    std::vector<int64_t> offsets;
    int64_t offset = 0;
    for (size_t i = 0; i < model_.frozen.size(); ++i) {
      offsets.push_back(offset);
      for (size_t rank = 0; rank < model_.frozen_runs.size(); ++rank) {
        FlatRun run = model_.frozen_runs[rank][i];
        run.begin = offset;
        spaces[0].Add(static_cast<int>(rank), run);
      }
      offset += model_.frozen_runs[0][i].numel;
    }
    FSDP_RETURN_IF_ERROR(tensors_.SetParameters(model_.frozen, std::move(offsets), {kFp32}, std::move(spaces)));
    for (size_t i = 0; i < model_.frozen.size(); ++i) {
      const std::optional<int> number = tensors_.StateOf(i, 0);
      if (!number) return absl::DataLossError(absl::StrCat(Quote(model_.frozen[i].first), " is in no file"));
      result_.parameters.emplace(model_.frozen[i].first, *number);
      result_.order.push_back(model_.frozen[i].first);
    }
    return absl::OkStatus();
  }

  // Without a model file the parameters of several groups are not known.
  absl::StatusOr<std::optional<TorchNode>> Groups(const TorchNode& state) {
    if (!groups_) return std::optional<TorchNode>();
    std::vector<NamedShapes> units = model_.groups;
    const size_t count = groups_->is_branch() ? groups_->members().size() : groups_->value().size();
    if (!has_model_ && count == 1) {
      units.emplace_back();
      for (const auto& [name, own] : state.members()) units[0].emplace_back(name, Shape({0}));
    } else if (!has_model_) {
      result_.left_out.push_back(
          absl::StrCat("param_groups of ", count, " groups (no model file says which parameters are in which)"));
      return std::optional<TorchNode>();
    }
    const std::string path = JoinPath(files_.directory, InZero(kDeepSpeedOptimizerState));
    absl::StatusOr<TorchNode> named = GroupsByName(*groups_, units);
    if (!named.ok()) return Annotate(named.status(), path);
    return std::optional<TorchNode>(*std::move(named));
  }

  const DeepSpeedFiles& files_;
  const ModelStates& model_;
  const TensorSourceOptions& options_;
  StoredTensors& tensors_;
  TrainedStates result_;
  bool has_model_ = false;
  bool has_flat_ = false;                           // a parameter with the shape of a flat tensor
  absl::flat_hash_map<std::string, Shape> shapes_;  // by name, from the model file
  std::optional<std::vector<std::string>> states_;  // of each folder with state
  std::string first_;                               // the folder that they are from
  int64_t without_state_ = 0;                       // parameters
  std::string a_without_state_;                     // the folder of one
  std::optional<TorchNode> groups_;
  TorchNode scalars_;
};

}  // namespace

absl::StatusOr<TrainedStates> ReadUniversalStates(const DeepSpeedFiles& files, const ModelStates& model,
                                                  const TensorSourceOptions& options, StoredTensors& tensors) {
  return UniversalReader(files, model, options, tensors).Read();
}

}  // namespace fsdp
