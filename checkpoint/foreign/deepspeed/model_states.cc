// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/model_states.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

// Entries that say how the values are stored; all others are kept.
constexpr std::array<std::string_view, 11> kStructure = {"module",
                                                         "optimizer",
                                                         "param_shapes",
                                                         "frozen_param_shapes",
                                                         "frozen_param_fragments",
                                                         "shared_params",
                                                         "dp_world_size",
                                                         "mp_world_size",
                                                         "universal_checkpoint_info",
                                                         "checkpoint_parallel_dimensions",
                                                         "sparse_tensor_module_names"};

// Entries of what is not read, if they are not empty.
struct Unread {
  const char* name;
  const char* what;
};
constexpr std::array kUnread = {Unread{"num_experts", "a mixture of experts, whose experts are in files of their own"},
                                Unread{"ds_autoep_layers", "AutoEP, whose experts are divided among ranks"},
                                Unread{"ds_zero_partition_groups", "AutoEP, whose parameters are divided by groups"}};

bool IsEmpty(const TorchNode& node) {
  if (node.kind() == Kind::kTensor) return false;
  if (node.kind() == Kind::kBranch) return node.members().empty();
  const PythonJson& value = node.value();
  return value.is_null() || value == PythonJson(false) || value == PythonJson(0) ||
         (value.is_structured() && value.empty());
}

// {} or an OrderedDict without members.
bool IsEmptyDict(const TorchNode& node) {
  const std::optional<PythonJson> members = node.kind() == Kind::kValue ? MembersOf(node.value()) : std::nullopt;
  return members && members->empty();
}

// Refused rather than read in part: a mixture of experts without its experts would look like a whole model.
absl::Status CheckIsRead(const TorchNode& root) {
  for (const auto& [name, what] : kUnread) {
    const TorchNode* const node = root.Find(name);
    if (node == nullptr || IsEmpty(*node)) continue;
    // A model without experts has [0] or the like.
    const std::optional<std::vector<PythonJson>> items = ItemsOf(node->value());
    const bool is_zero = items && std::all_of(items->begin(), items->end(),
                                              [](const PythonJson& item) { return item == PythonJson(0); });
    if (!is_zero) {
      return absl::InvalidArgumentError(absl::StrCat("its entry ", Quote(name), " says that it is of ", what,
                                                     ": this is not read; save a whole model from the program"));
    }
  }
  FSDP_ASSIGN_OR_RETURN(const std::optional<int64_t> model_parallel, FindCount(root, "mp_world_size"));
  if (model_parallel.value_or(1) > 1) {
    return absl::InvalidArgumentError(absl::StrCat("mp_world_size is ", *model_parallel,
                                                   ": checkpoints of tensor parallelism are not read; save a whole "
                                                   "model from the program"));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedShapes> FindShapes(const TorchNode& root, const std::string& name) {
  const TorchNode* const node = FindValue(root, name);
  if (node == nullptr) return NamedShapes();
  return ShapesOf(node->value(), name);
}

absl::StatusOr<std::map<std::string, std::string>> FindNames(const TorchNode& root, const std::string& name) {
  std::map<std::string, std::string> names;
  const TorchNode* const node = FindValue(root, name);
  if (node == nullptr) return names;
  const std::optional<PythonJson> members = MembersOf(node->value());
  if (!members) return absl::DataLossError(absl::StrCat(Quote(name), " is not a dict of names"));
  for (const auto& [alias, source] : members->items()) {
    if (!source.is_string()) return absl::DataLossError(absl::StrCat(Quote(name), " is not a dict of names"));
    names[alias] = source.get<std::string>();
  }
  return names;
}

// The parts of a model file that every rank's has alike.
// Compared among all ranks' files of ZeRO 3, so that a file of another step or run is found before its elements are
// used.
struct Common {
  std::vector<NamedShapes> groups;
  NamedShapes frozen;
  std::optional<int64_t> world_size;
  std::optional<int64_t> step;

  static absl::StatusOr<Common> Of(const TorchNode& root) {
    Common common;
    FSDP_ASSIGN_OR_RETURN(common.groups, FindShapeDicts(root, "param_shapes"));
    FSDP_ASSIGN_OR_RETURN(common.frozen, FindShapes(root, "frozen_param_shapes"));
    FSDP_ASSIGN_OR_RETURN(common.world_size, FindCount(root, "dp_world_size"));
    FSDP_ASSIGN_OR_RETURN(common.step, FindCount(root, "global_steps"));
    return common;
  }

  // The difference; "" if they are equal.
  std::string DifferenceFrom(const Common& other) const {
    if (world_size != other.world_size) return "dp_world_size";
    if (step != other.step) return "global_steps";
    if (groups != other.groups) return "param_shapes";
    return frozen != other.frozen ? "frozen_param_shapes" : "";
  }
};

class Reader {
 public:
  Reader(const DeepSpeedFiles& files, const TensorSourceOptions& options, StoredTensors& tensors)
      : files_(files), options_(options), tensors_(tensors) {}

  absl::StatusOr<ModelStates> Read() {
    for (size_t rank = 0; rank < files_.model.size(); ++rank) {
      const absl::Status status = ReadRank(rank);
      if (!status.ok()) return status;
    }
    return std::move(states_);
  }

 private:
  absl::Status ReadRank(size_t rank) {
    uint32_t number = 0;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<TorchFile> file,
                          tensors_.OpenFile(files_.model[rank], options_, &number));
    TorchNode root = file->TakeRoot();
    Expand(root);  // a dict without tensors is one value
    const absl::Status status = rank == 0 ? TakeFirst(number, *file, root) : Compare(root);
    if (!status.ok()) return Annotate(status, file->path());
    return Annotate(TakeFrozen(number, *file, root), file->path());
  }

  // Rank 0's file decides what there is. The tree is moved into `tensors_` part by part; entries that describe the
  // storage are used here and not kept.
  absl::Status TakeFirst(uint32_t number, const TorchFile& file, TorchNode& root) {
    TorchNode* const module = root.Find("module");
    // The model file of a universal checkpoint need not have what the folders have: a dict without tensors is one
    // value.
    if (files_.is_universal && module != nullptr) Expand(*module);
    const bool is_empty = files_.is_universal && module != nullptr && IsEmptyDict(*module);
    if (!is_empty && (module == nullptr || !module->is_branch() || module->is_list)) {
      return absl::DataLossError("it has no dict \"module\" with tensors, so it is not a model file of DeepSpeed");
    }
    FSDP_RETURN_IF_ERROR(CheckIsRead(root));
    FSDP_ASSIGN_OR_RETURN(first_, Common::Of(root));
    FSDP_ASSIGN_OR_RETURN(states_.shared, FindNames(root, "shared_params"));
    states_.groups = first_.groups;
    states_.frozen = first_.frozen;
    states_.step = first_.step;
    FSDP_RETURN_IF_ERROR(CheckWorld());
    for (const std::string name : {"module", "optimizer"}) {
      TorchNode* const node = root.Find(name);
      if (node == nullptr || !node->is_branch()) continue;
      (name == "module" ? states_.module : states_.optimizer) = tensors_.Import(number, file, *node);
    }
    if (!states_.groups.empty()) FSDP_RETURN_IF_ERROR(WidenBuffers(root));
    // Frozen parameters of ZeRO 3 are parts of ranks, which are never views of their own.
    TorchNode kept;
    for (const auto& [name, member] : root.members()) {
      if (std::find(kStructure.begin(), kStructure.end(), name) != kStructure.end()) continue;
      const bool is_none = member.kind() == Kind::kValue && member.value().is_null();
      if (is_none) continue;
      TorchNode copy = member;
      if (files_.is_partitioned && copy.kind() == Kind::kValue) of_rank_0_[name] = copy.value();
      states_.others.Add(name, tensors_.Import(number, file, copy));
    }
    return absl::OkStatus();
  }

  // Buffers in low precision become float32, as the parameters next to them are, and as DeepSpeed's zero_to_fp32 has
  // it.
  absl::Status WidenBuffers(const TorchNode& root) {
    const TorchNode* const node = FindValue(root, "buffer_names");
    const std::optional<std::vector<PythonJson>> names = node == nullptr ? std::nullopt : ItemsOf(node->value());
    if (node != nullptr && !names) return absl::DataLossError("its \"buffer_names\" is not a list");
    for (const PythonJson& name : names.value_or(std::vector<PythonJson>())) {
      TorchNode* const buffer = name.is_string() ? states_.module.Find(name.get<std::string>()) : nullptr;
      if (buffer == nullptr || buffer->kind() != Kind::kTensor) continue;
      const DType dtype = tensors_.type(buffer->tensor()).dtype;
      if (dtype != DType::kBFloat16 && dtype != DType::kFloat16) continue;
      *buffer = TorchNode::Tensor(tensors_.AddWidened(buffer->tensor()));
      ++states_.widened;
    }
    return absl::OkStatus();
  }

  // As many files as ranks.
  absl::Status CheckWorld() {
    const auto optim = static_cast<int64_t>(files_.optim.size());
    const auto models = static_cast<int64_t>(files_.model.size());
    const int64_t files = std::max<int64_t>(optim, files_.is_partitioned ? models : 1);
    const int64_t world = first_.world_size.value_or(files);
    if (world < 1 || world > (int64_t{1} << 24)) {
      return absl::DataLossError(absl::StrCat("dp_world_size is ", world));
    }
    states_.world_size = static_cast<int>(world);
    if (files_.is_partitioned && models != world) return OtherWorld(models, files_.model);
    if (files_.is_universal || states_.groups.empty()) return absl::OkStatus();
    if (optim == 0) return MissingOptim();
    if (optim != world) return OtherWorld(optim, files_.optim);
    return absl::OkStatus();
  }

  absl::Status MissingOptim() const {
    return absl::NotFoundError(absl::StrCat(
        "the files *zero_pp_rank_0_mp_rank_00_optim_states.pt to *zero_pp_rank_", states_.world_size - 1,
        "_mp_rank_00_optim_states.pt, which have the parameters in float32, are missing: copy the whole checkpoint",
        files_.is_partitioned ? "" : ", or give only this file, which has the model in low precision"));
  }

  // Names the first file that is missing, or the last one that should not be there.
  absl::Status OtherWorld(int64_t count, const std::vector<std::string>& names) const {
    const std::string& last = names.back();
    if (count > states_.world_size) {
      return absl::DataLossError(absl::StrCat("it was saved by ", states_.world_size, " ranks, but there is ",
                                              Quote(last), ", of another save: remove the files that are not its own"));
    }
    const std::string number = absl::StrCat("zero_pp_rank_", count - 1, "_");
    std::string missing = last;
    missing.replace(missing.find(number), number.size(), absl::StrCat("zero_pp_rank_", count, "_"));
    return absl::NotFoundError(
        absl::StrCat("it was saved by ", states_.world_size, " ranks, but ", Quote(missing),
                     " is missing: each rank's file has a part of every tensor, so copy the whole checkpoint"));
  }

  absl::Status Compare(const TorchNode& root) {
    FSDP_ASSIGN_OR_RETURN(const Common common, Common::Of(root));
    if (const std::string difference = common.DifferenceFrom(first_); !difference.empty()) {
      return absl::DataLossError(absl::StrCat("its ", Quote(difference), " differs from the same entry of ",
                                              Quote(files_.model[0]), ": it is of another save"));
    }
    constexpr size_t kMostNamed = 20;
    for (auto at = of_rank_0_.begin(); at != of_rank_0_.end();) {
      const TorchNode* const own = root.Find(at->first);
      if (own != nullptr && own->kind() == Kind::kValue && own->value() == at->second) {
        ++at;
        continue;
      }
      if (states_.left_out.size() < kMostNamed) {
        states_.left_out.push_back(
            absl::StrCat(Quote(at->first), " of other ranks (it differs from rank 0's, which is read)"));
      }
      at = of_rank_0_.erase(at);
    }
    return absl::OkStatus();
  }

  // Each rank of ZeRO 3 has the piece of ceil(numel / ranks) elements.
  absl::Status TakeFrozen(uint32_t number, const TorchFile& file, TorchNode& root) {
    if (first_.frozen.empty()) return absl::OkStatus();
    const TorchNode* const fragments = FindValue(root, "frozen_param_fragments");
    std::vector<FlatRun>& runs = states_.frozen_runs.emplace_back();
    for (const auto& [name, shape] : first_.frozen) {
      const TorchNode* const fragment = fragments == nullptr ? nullptr : fragments->Find(name);
      if (fragment == nullptr && !files_.is_partitioned) continue;  // ZeRO 1: only in the module
      if (fragment == nullptr || fragment->kind() != Kind::kTensor) {
        return absl::DataLossError(absl::StrCat("it has no fragment of the frozen parameter ", Quote(name)));
      }
      const TorchTensors& stored = file.archive().tree.tensors;
      const Shape found = stored.shape(fragment->tensor());
      const int64_t ranks = files_.is_partitioned ? static_cast<int64_t>(files_.model.size()) : 1;
      const int64_t expected = shape.numel() / ranks + (shape.numel() % ranks != 0 ? 1 : 0);
      const std::optional<FlatRun> run = StoredTensors::RunOf(number, file, fragment->tensor());
      const bool fits = files_.is_partitioned ? run && found.numel() == expected : found == shape;
      if (!fits) {
        return absl::DataLossError(absl::StrCat(
            "its fragment of the frozen parameter ", Quote(name), " has the shape ", found.ToString(), ", expected ",
            files_.is_partitioned ? absl::StrCat(expected, " elements of ") : "", shape.ToString()));
      }
      if (files_.is_partitioned) {
        runs.push_back(*run);
      } else {
        states_.frozen_views[name] = tensors_.AddView(number, file, fragment->tensor());
      }
    }
    return absl::OkStatus();
  }

  const DeepSpeedFiles& files_;
  const TensorSourceOptions& options_;
  StoredTensors& tensors_;
  ModelStates states_;
  Common first_;
  std::map<std::string, PythonJson> of_rank_0_;  // plain entries that other ranks have too
};

}  // namespace

absl::StatusOr<ModelStates> ReadModelStates(const DeepSpeedFiles& files, const TensorSourceOptions& options,
                                            StoredTensors& tensors) {
  return Reader(files, options, tensors).Read();
}

}  // namespace fsdp
