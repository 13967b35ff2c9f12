// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch_checkpointing/torch_checkpointing_source.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/item_plan.h"
#include "fsdp/checkpoint/foreign/torch_checkpointing/joined_items.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

class Source final : public TensorSource, public CoveringChecksums {
 public:
  Source(std::string path, const TensorSourceOptions& options)
      : path_(std::move(path)), options_(options), pool_(path_, options) {}

  absl::Status ReadContents() {
    {
      FSDP_ASSIGN_OR_RETURN(const ItemPlan plan, PlanItems(path_));
      has_metadata_ = plan.has_metadata;
      world_size_ = plan.world_size;
      FSDP_ASSIGN_OR_RETURN(items_, JoinItems(path_, plan, options_, pool_));
    }
    const TorchLeafTypes types(static_cast<int64_t>(items_.tensors.size()), [this](int i) {
      const JoinedItem& tensor = items_.tensors[i];
      return TorchLeafType{tensor.dtype, tensor.shape, tensor.identity, tensor.wrapper};
    });
    const TorchTensorReader read = [this](int tensor, const Interval& interval, std::byte* out) {
      return ReadJoinedItem(items_, tensor, interval, pool_, out);
    };
    std::vector<TensorRole> map = options_.map;
    FSDP_RETURN_IF_ERROR(CheckIds(map));
    absl::StatusOr<TorchState> state =
        StateOfTree(std::move(items_.root), types,
                    {.read = read,
                     .flat = {.layout = options_.flat_layout ? &*options_.flat_layout : nullptr, .world_size = 1},
                     .model_only = options_.model_only,
                     .skip_objects = options_.model_only || options_.skip_links,
                     .skip_weights = options_.skip_links,
                     .map = std::move(map)});
    items_.root = TorchNode();
    if (!state.ok()) return Annotate(state.status(), path_);
    state_ = *std::move(state);
    state_.path = path_;
    state_.TakeTrainerState();
    for (std::string& note : items_.notes) state_.layout.notes.push_back(std::move(note));
    return absl::OkStatus();
  }

  const FormatTraits& traits() const override { return TorchCheckpointingTraits(); }
  const StateDict& contents() const override { return state_.contents; }
  const SourceLayout& layout() const override { return state_.layout; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const CoveringChecksums* covering_checksums() const override { return this; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    if (has_metadata_) paths.push_back(JoinPath(path_, kItemsMetadataName));
    for (const std::unique_ptr<ItemFile>& file : items_.files) paths.push_back(JoinPath(path_, file->name()));
    return paths;
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> left_out = state_.left_out;
    left_out.insert(left_out.end(), items_.left_out.begin(), items_.left_out.end());
    for (std::string& beside : WeightsBeside(path_, files())) left_out.push_back(std::move(beside));
    return left_out;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      absl::Status status = ReadJoinedItem(items_, tensor, elements, pool_, to);
      if (status.ok() && items_.tensors[tensor].dtype == DType::kBool) status = CheckBoolBytes(to, interval);
      if (status.ok()) return status;
      return Annotate(status, absl::StrCat("tensor ", Quote(key.ToString()), " of ", path_));
    };
    return state_.Read(key, interval, read, static_cast<std::byte*>(out));
  }

  bool has_checksums() const override { return pool_.has_checksums(); }
  absl::Status VerifyRest() const override { return pool_.VerifyRest(); }

  // For view: an HDF5 file that refers to the bytes needs contiguous ones.
  // The parts, if the elements of each are consecutive.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* const leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in a pickle, not a tensor");
    const JoinedItem& joined = items_.tensors[part->tensor];
    if (joined.shape != state_.contents.FindTensor(key)->shape) {
      return absl::UnimplementedError("it is a part of a flat parameter of FSDP1");
    }
    if (joined.has_shards) return absl::UnimplementedError("its parts are boxes of larger tensors");
    std::vector<TensorPlace> places;
    for (size_t place = 0; place < joined.parts.size(); ++place) {
      const LocalPart& local_part = joined.parts[place];
      if (local_part.file < 0) continue;
      const ItemFile& file = *items_.files[local_part.file];
      const LocalTensor local = file.tensor(local_part.tensor);
      if (local.shape.numel() == 0) continue;
      if (!local.is_contiguous)
        return absl::UnimplementedError("a part of it is a view whose elements are not contiguous");
      const absl::Span<const int64_t> dims = joined.shape.dims();
      Box box = joined.dtensor == nullptr ? Box{std::vector<int64_t>(dims.size(), 0), {dims.begin(), dims.end()}}
                                          : BoxOf(*joined.dtensor, static_cast<int64_t>(place));
      places.push_back({JoinPath(path_, file.name()), local.offset, std::move(box)});
    }
    return places;
  }

 private:
  // torch.optim's own state_dict(): "state" has integers as keys and param_groups have lists of them.
  // Optimizers that know their parameters only by numbers.
  std::vector<std::string> OptimizersById() const {
    std::vector<std::string> names;
    for (const auto& [name, item] : items_.root.members()) {
      const TorchNode* const state = IsTorchOptimizer(item) ? item.Find("state") : nullptr;
      const TorchNode* const groups = state == nullptr ? nullptr : item.Find("param_groups");
      const bool has_ids = groups != nullptr && state->is_branch() && !state->members().empty() &&
                           state->members()[0].second.has_json_name;
      if (has_ids && !NamesParameters(*groups)) names.push_back(name);
    }
    return names;
  }

  // The numbers count the parameters in the order of the model, which safetensors files, sorted by dtype and name, do
  // not keep: such an optimizer stays under its numbers, as extra values. Each stage of a pipeline counts from 0.
  absl::Status CheckIds(std::vector<TensorRole>& map) {
    const bool keeps_order = std::none_of(items_.files.begin(), items_.files.end(),
                                          [](const auto& file) { return file->format() == ItemFormat::kSafetensors; });
    for (const std::string& name : OptimizersById()) {
      if (items_.has_stages && !options_.model_only) {
        return absl::InvalidArgumentError(absl::StrCat(
            path_, ": ", Quote(name),
            " numbers its parameters, and the ranks have other ones each, as the stages of a ",
            "pipeline: save it by name (get_optimizer_state_dict), or open it with TensorSourceOptions::model_only"));
      }
      const bool is_mapped = std::any_of(map.begin(), map.end(), [&](const TensorRole& role) {
        return role.branch == name || absl::StartsWith(role.branch, absl::StrCat(name, "."));
      });
      if (keeps_order || is_mapped) continue;
      map.push_back({.branch = name, .section = TensorRole::Section::kExtra});
      items_.notes.push_back(absl::StrCat(Quote(name),
                                          " became extra values: it numbers the parameters in the order of "
                                          "the model, which its safetensors files do not keep"));
    }
    return absl::OkStatus();
  }

  static bool NamesParameters(const TorchNode& groups) {
    if (groups.kind() == TorchNode::Kind::kValue)
      return absl::StrContains(groups.value().dump(-1, ' ', false, PythonJson::error_handler_t::replace),
                               "\"param_names\"");
    return std::any_of(groups.members().begin(), groups.members().end(),
                       [](const auto& group) { return group.second.Find("param_names") != nullptr; });
  }

  const std::string path_;
  const TensorSourceOptions options_;
  mutable FilePool pool_;  // thread-safe
  JoinedItems items_;
  TorchState state_;
  bool has_metadata_ = false;
  int world_size_ = 1;
  const std::map<std::string, std::string> metadata_ = {};  // safetensors' is of one rank's file
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchCheckpointingSource(const std::string& path,
                                                                           const TensorSourceOptions& options) {
  auto source = std::make_unique<Source>(path, options);
  FSDP_RETURN_IF_ERROR(source->ReadContents());
  return source;
}

const FormatTraits& TorchCheckpointingTraits() {
  static const auto* traits =
      new FormatTraits{.name = "torch_checkpointing",
                       .headline = "a checkpoint of torch_checkpointing",
                       .in_directory = "ITEM_RANK.pt of torch_checkpointing or of FSDP2's ranks",
                       .has_writers = true,
                       .has_layout = true};
  return *traits;
}

}  // namespace fsdp
