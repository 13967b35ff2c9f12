// SPDX-License-Identifier: Apache-2.0
//
// Opening reads .metadata and the archives of plain values, and finds the state dict in the tree of the entries
// (torch_state.h). dcp_tensors.h reads the tensors.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_source.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_tensors.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

absl::Status In(const absl::Status& status, const std::string& place) { return Annotate(status, place); }

class DcpSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  DcpSource(std::string path, DcpMetadata metadata, const TensorSourceOptions& options)
      : path_(std::move(path)), options_(options), tensors_(path_, std::move(metadata), options) {}

  // Builds the tree from the entries of .metadata and finds the state dict in it. Values are read from their archives,
  // because they decide what the state dict is (param_groups); tensors are not read.
  absl::Status ReadState() {
    // .metadata does not record the number of ranks, for which flat parameters are padded.
    world_size_ = DcpWorldSize(tensors_.chunks().slices().files());
    TorchNode root;
    // Ranks that share the work list the elements of a list by rank: the ones that come too early wait.
    std::vector<DcpEntry> early;
    for (DcpEntry& entry : tensors_.TakeEntries()) {
      FSDP_ASSIGN_OR_RETURN(const bool is_next, Insert(entry, root));
      if (!is_next) early.push_back(std::move(entry));
    }
    std::sort(early.begin(), early.end(),
              [](const DcpEntry& a, const DcpEntry& b) { return IsBefore(a.path(), b.path()); });
    for (const DcpEntry& entry : early) {
      FSDP_ASSIGN_OR_RETURN(const bool is_next, Insert(entry, root));
      if (!is_next) return Broken(entry);
    }
    const absl::flat_hash_map<int, int> same = tensors_.SameBytes();
    const TorchLeafTypes types(tensors_.size(), [&](int i) {
      const auto first = same.find(i);
      return TorchLeafType{tensors_[i].dtype, tensors_[i].shape, first == same.end() ? -1 : first->second};
    });
    const TorchTensorReader read = [this](int tensor, const Interval& interval, std::byte* out) {
      return tensors_.Read(tensor, interval, out);
    };
    absl::StatusOr<TorchState> state = StateOfTree(
        std::move(root), types,
        {.read = read,
         .flat = {.layout = options_.flat_layout ? &*options_.flat_layout : nullptr, .world_size = world_size_},
         .model_only = options_.model_only,
         .skip_objects = options_.model_only || options_.skip_links,
         .skip_weights = options_.skip_links,
         .map = options_.map});
    if (!state.ok()) return In(state.status(), path_);
    state_ = *std::move(state);
    state_.path = path_;
    state_.TakeTrainerState();
    return absl::OkStatus();
  }

  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }
  const FormatTraits& traits() const override { return DcpTraits(); }
  const StateDict& contents() const override { return state_.contents; }
  const SourceLayout& layout() const override { return state_.layout; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return string_metadata_; }

  std::vector<std::string> files() const override { return tensors_.files(); }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> left_out = WeightsBeside(path_, files());
    left_out.insert(left_out.begin(), state_.left_out.begin(), state_.left_out.end());
    return left_out;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const std::string name = absl::StrCat("tensor ", Quote(key.ToString()));
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      const absl::Status status = tensors_.Read(tensor, elements, to);
      if (!status.ok()) return In(status, name);
      if (tensors_[tensor].dtype != DType::kBool) return absl::OkStatus();
      const absl::Status is_bool = CheckBoolBytes(to, interval);
      return is_bool.ok() ? is_bool : In(is_bool, absl::StrCat(name, " of ", path_));
    };
    return state_.Read(key, interval, read, static_cast<std::byte*>(out));
  }

  bool has_checksums() const override { return tensors_.has_checksums(); }

  absl::Status VerifyRest() const override { return tensors_.VerifyRest(); }

  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in a pickle, not a tensor");
    if (!IsWhole(*part, key)) return absl::UnimplementedError("it is a part of a flat parameter of FSDP1");
    return tensors_.Places(part->tensor);
  }

  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const DcpTensors::Storage storage = tensors_.StorageOf(part.tensor);
    return TensorStorage{.id = part.tensor,
                         .nbytes = storage.nbytes,
                         .view = part.offset,
                         .touched_bytes = storage.nbytes,
                         .distinct_numel = IsWhole(part, key) ? storage.distinct_numel : 0};
  }

  absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr || !IsWhole(*part, key)) return absl::UnimplementedError("it is not a tensor of .metadata");
    auto* to = static_cast<std::byte*>(out);
    absl::Status status = tensors_.ReadDistinct(part->tensor, interval, to);
    if (status.ok() && tensors_[part->tensor].dtype == DType::kBool) status = CheckBoolBytes(to, interval);
    return status.ok() ? status : In(status, absl::StrCat("tensor ", Quote(key.ToString())));
  }

 private:
  bool IsWhole(const TorchTensorPart& part, const StateKey& key) const {
    return tensors_[part.tensor].shape == state_.contents.FindTensor(key)->shape;
  }

  static absl::Status Broken(const DcpEntry& entry) {
    return absl::DataLossError(absl::StrCat(
        Quote(entry.name()), ": its path in planner_data is too deep, or contradicts the path of another entry"));
  }

  // By names, and by the numbers of elements.
  static bool IsBefore(const DcpEntry::Path& a, const DcpEntry::Path& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
      const bool are_indices = x.is_index && y.is_index;
      if (are_indices && x.name.size() != y.name.size()) return x.name.size() < y.name.size();
      return x.name < y.name;
    });
  }

  // Puts the tensor or value of `entry` into the nested dicts and lists under `root` at its path, and creates the
  // branches on the way. False, and nothing is inserted, if an element of a list that is before it is missing: a
  // TorchNode's list numbers its members by position. A path that another entry contradicts (a leaf instead of a
  // branch) is damage.
  absl::StatusOr<bool> Insert(const DcpEntry& entry, TorchNode& root) {
    const DcpEntry::Path path = entry.path();
    if (path.size() > static_cast<size_t>(kMaxTorchDepth)) return Broken(entry);
    TorchNode* node = &root;
    for (size_t i = 0; i < path.size(); ++i) {
      const DcpEntry::PathElement& element = path[i];
      if (!node->is_branch() || (!node->members().empty() && node->is_list != element.is_index)) return Broken(entry);
      node->is_list = element.is_index;
      const bool is_last = i + 1 == path.size();
      TorchNode* next = is_last ? nullptr : node->Find(element.name);
      if (next == nullptr) {
        const std::string next_index = absl::StrCat(node->members().size());
        if (element.is_index && element.name != next_index) return false;
        absl::StatusOr<TorchNode> added = is_last ? LeafOf(entry) : TorchNode();
        FSDP_RETURN_IF_ERROR(added.status());
        next = node->Add(element.name, *std::move(added));
        if (next == nullptr) return Broken(entry);
      }
      node = next;
    }
    return true;
  }

  absl::StatusOr<TorchNode> LeafOf(const DcpEntry& entry) {
    if (entry.is_tensor()) return TorchNode::Tensor(static_cast<int>(entry.tensor()));
    return tensors_.ReadValue(entry);
  }

  const std::string path_;
  const TensorSourceOptions options_;
  DcpTensors tensors_;  // constant once the source is open
  TorchState state_;
  int world_size_ = 1;
  const std::map<std::string, std::string> string_metadata_;
};

}  // namespace

absl::StatusOr<bool> IsDcpDirectory(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const auto type, TypeOfTarget(JoinPath(directory, kDcpMetadataName)));
  return type != std::filesystem::file_type::not_found;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenDcpSource(const std::string& path,
                                                            const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(DcpMetadata metadata, ReadDcpMetadata(path));
  auto source = std::make_unique<DcpSource>(path, std::move(metadata), options);
  FSDP_RETURN_IF_ERROR(source->ReadState());
  return source;
}

const FormatTraits& DcpTraits() {
  static const auto* traits = new FormatTraits{.name = "dcp",
                                               .headline = "a DCP directory",
                                               .in_directory = "DCP's .metadata",
                                               .file = {},
                                               .has_writers = true,
                                               .has_layout = true};
  return *traits;
}

}  // namespace fsdp
