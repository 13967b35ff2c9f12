// SPDX-License-Identifier: Apache-2.0
//
// One source for all ways to save, once the files are joined (joined_files.h). torch_state.h finds the state dict in
// the tree, and a read is: leaf -> tensor of the list -> shards that overlap the interval -> view -> bytes of the
// storage. All metadata is read when the source is opened; reads only touch payload, except that files of ranks are
// compared.
#include "fsdp/checkpoint/foreign/torch/pt/torch_source.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pt/deepspeed_part.h"
#include "fsdp/checkpoint/foreign/torch/pt/joined_files.h"
#include "fsdp/checkpoint/foreign/torch/pt/joined_state.h"
#include "fsdp/checkpoint/foreign/torch/pt/rank_files.h"
#include "fsdp/checkpoint/foreign/torch/pt/tensor_list.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/distinct_elements.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/source/adapter_config.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/rank_file_names.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr char kTorchAdapterName[] = "adapter_model.bin";  // PEFT's

class TorchSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  // Errors of the state dict get the path as a prefix.
  static absl::StatusOr<std::unique_ptr<TensorSource>> Create(const std::string& path, JoinedFiles joined,
                                                              const TensorSourceOptions& options) {
    std::unique_ptr<TorchSource> source(new TorchSource(std::move(joined.tensors)));
    const TensorList& tensors = source->tensors_;
    source->NumberStorages(joined.files);
    source->FindViews();
    const TorchLeafTypes types(tensors.size(), [&](int i) { return TypeOf(tensors[i], source->views_[i]); });
    absl::StatusOr<std::string> word = WordOnDeepSpeed(joined.root, types);
    if (!word.ok()) return Annotate(word.status(), path);
    const TorchTensorReader read = [&](int tensor, const Interval& interval, std::byte* out) {
      return ReadRefs(tensors[tensor], interval, out);
    };
    absl::StatusOr<TorchState> state = StateOfTree(
        std::move(joined.root), types,
        {.read = read,
         .flat = {.layout = options.flat_layout ? &*options.flat_layout : nullptr, .world_size = joined.shards},
         .model_only = options.model_only,
         .skip_objects = options.model_only || options.skip_links,
         .skip_weights = options.skip_links,
         .map = options.map});
    if (!state.ok()) {
      return Annotate(state.status(), path);
    }
    source->files_ = std::move(joined.files);
    source->state_ = *std::move(state);
    source->state_.path = path;
    if (!word->empty()) source->state_.left_out.push_back(*std::move(word));
    source->state_.TakeTrainerState();
    if (const std::string& file = source->files_.front()->path(); IsAdapterFile(file)) {
      source->state_.layout.notes.push_back(AdapterNote(file));
    }
    std::error_code ignored;
    if (std::string note = fs::is_directory(path, ignored) ? "" : PartNote(path); !note.empty()) {
      source->state_.layout.notes.push_back(std::move(note));
    }
    source->world_size_ = joined.ranks;
    if (joined.ranks > 1) {
      const absl::Status fits = FitJoinedState(joined.ranks, options, tensors, source->state_);
      if (!fits.ok()) return Annotate(fits, path);
    }
    return source;
  }

  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }
  const FormatTraits& traits() const override { return TorchTraits(); }
  const StateDict& contents() const override { return state_.contents; }
  const SourceLayout& layout() const override { return state_.layout; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const std::shared_ptr<TorchFile>& file : files_) paths.push_back(file->path());
    return paths;
  }

  // Other files only of a directory: the caller of a file asked for that file.
  std::vector<std::string> left_out() const override {
    std::vector<std::string> left_out = state_.left_out;
    for (std::string& beside : WeightsBesideGiven(state_.path, files())) left_out.push_back(std::move(beside));
    return left_out;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      const TensorRefs refs = tensors_[tensor];
      absl::Status status = ReadRefs(refs, elements, to);
      if (status.ok() && refs[0].dtype() == DType::kBool) status = CheckBoolBytes(to, interval);
      if (status.ok()) return status;
      return Annotate(status, Place(key, refs[0]));
    };
    return state_.Read(key, interval, read, static_cast<std::byte*>(out));
  }

  absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in the pickle, not a tensor");
    const absl::Status status = ReadDistinctOf(key, *part, interval, static_cast<std::byte*>(out));
    return status.ok() ? status : Annotate(status, Place(key, tensors_[part->tensor][0]));
  }

  bool has_checksums() const override {
    return std::any_of(files_.begin(), files_.end(), [](const auto& file) { return !file->checksums().empty(); });
  }

  absl::Status VerifyRest() const override {
    for (const std::shared_ptr<TorchFile>& file : files_) {
      const File& payload = file->payload();  // first: it makes the table of CRCs
      std::vector<Interval> ranges;
      if (world_size_ > 1 && !file->checksums().empty()) ranges = CopiesIn(*file);
      for (const Interval& missing : file->checksums().Missing()) ranges.push_back(missing);
      const absl::Status status = ReadForChecksums(payload, ranges);
      if (!status.ok()) {
        return Annotate(status, file->path());
      }
    }
    return absl::OkStatus();
  }

  // One place, if the elements are consecutive in one file.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in the pickle, not a tensor");
    const TensorRefs refs = tensors_[part->tensor];
    const TorchTensor tensor = refs[0].tensor();
    if (refs.size() > 1) return absl::UnimplementedError("its elements are in the files of several ranks");
    if (!tensor.is_contiguous()) {
      return absl::UnimplementedError(absl::StrCat("it is a view with strides [", absl::StrJoin(tensor.strides, ", "),
                                                   "], whose elements are not contiguous"));
    }
    const Shape& shape = state_.contents.FindTensor(key)->shape;  // the shape of the part, if the tensor is a flat one
    Box whole = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}};
    const int64_t first = refs[0].first_byte() + part->offset * SizeOf(tensor.dtype);
    return std::vector<TensorPlace>{{refs[0].file->path(), first, std::move(whole)}};
  }

  // A concatenation of shards, or a part of a flat parameter, counts as a separate view.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const TensorRefs refs = tensors_[part.tensor];
    if (refs.size() == 1) {
      const TorchTensor tensor = refs[0].tensor();
      // Negative numbers for parts, so that they never equal a number of a whole view.
      const bool is_part = state_.contents.FindTensor(key)->shape != tensor.shape;
      return TensorStorage{.id = StorageNumber(refs[0]),
                           .nbytes = tensor.storage.nbytes,
                           .view = is_part ? -1 - part.offset : views_[part.tensor],
                           .touched_bytes = tensor.touched_bytes(),
                           .distinct_numel = is_part ? 0 : DistinctOf(part, tensor.shape)->shape.numel()};
    }
    int64_t nbytes = 0;
    for (const TensorRef& ref : refs) nbytes += ref.tensor().touched_bytes();
    return TensorStorage{.id = -1 - part.tensor, .nbytes = nbytes, .view = part.offset, .touched_bytes = nbytes};
  }

 private:
  explicit TorchSource(TensorList tensors) : tensors_(std::move(tensors)) {}

  void NumberStorages(const TorchFiles& files) {
    for (const std::shared_ptr<TorchFile>& file : files) {
      first_storages_[file.get()] = storage_count_;
      storage_count_ += static_cast<int64_t>(file->archive().tree.tensors.storage_count());
    }
  }

  // The storages of a rank's file that no tensor of the list views: they count as equal to another file's by their CRC.
  std::vector<Interval> CopiesIn(const TorchFile& file) const {
    const TorchTensors& tensors = file.archive().tree.tensors;
    std::vector<bool> is_read(tensors.storage_count());
    for (int64_t i = 0; i < tensors_.size(); ++i) {
      for (const TensorRef& ref : tensors_[i]) {
        if (ref.file == &file) is_read[tensors.storage_of(ref.index)] = true;
      }
    }
    std::vector<Interval> copies;
    for (uint32_t storage = 0; storage < is_read.size(); ++storage) {
      const int64_t begin = tensors.storage_offset(storage);
      if (!is_read[storage]) copies.push_back({begin, begin + tensors.storage_bytes(storage)});
    }
    return copies;
  }

  // The number of a tensor's storage among the storages of all files.
  int64_t StorageNumber(const TensorRef& ref) const {
    return first_storages_.at(ref.file) + ref.tensors().storage_of(ref.index);
  }

  // Equal views of one storage are one tensor under several names (tied weights): views_ has the number of the first of
  // them. Most storages have only one view and need no search.
  void FindViews() {
    using View = std::tuple<int64_t, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;
    absl::flat_hash_map<View, int> others;  // for storages with different views
    const auto view_of = [this](const TensorRef& ref) {
      const TorchTensor tensor = ref.tensor();
      return View(StorageNumber(ref), tensor.offset, tensor.dtype,
                  {tensor.shape.dims().begin(), tensor.shape.dims().end()},
                  {tensor.strides.begin(), tensor.strides.end()});
    };
    std::vector<int> first_views(storage_count_, -1);
    views_.assign(tensors_.size(), -1);
    for (int64_t i = 0; i < tensors_.size(); ++i) {
      const TensorRefs refs = tensors_[i];
      // The concatenation of shards has one name. A tensor without elements shares nothing.
      if (refs.size() > 1 || refs[0].tensors().shape(refs[0].index).numel() == 0) continue;
      // The first view of a storage is remembered without a copy of its shape; only further views enter the map.
      int& first = first_views[StorageNumber(refs[0])];
      views_[i] = static_cast<int>(i);
      if (first < 0) {
        first = static_cast<int>(i);
      } else if (const View view = view_of(refs[0]); view == view_of(tensors_[first][0])) {
        views_[i] = first;
      } else {
        views_[i] = others.try_emplace(view, static_cast<int>(i)).first->second;
      }
    }
  }

  // The concatenation of shards has their dtype and the sum of their lengths.
  static TorchLeafType TypeOf(const TensorRefs& refs, int view) {
    if (refs.size() == 1) {
      const TorchTensors& tensors = refs[0].tensors();
      const int i = refs[0].index;
      return {tensors.dtype(i), tensors.shape(i), view, tensors.wrapper(i)};
    }
    int64_t numel = 0;
    for (const TensorRef& ref : refs) numel += ref.tensors().shape(ref.index).numel();
    return {refs[0].dtype(), {numel}};
  }

  // "tensor "model/w", data/0 of model.pt".
  static std::string Place(const StateKey& key, const TensorRef& ref) {
    return absl::StrCat("tensor ", Quote(key.ToString()), ", ", ref.file->place(ref.index).entry, " of ",
                        ref.file->path());
  }

  // The distinct elements of a tensor that is one whole view; nullopt for parts and concatenations of views.
  std::optional<DistinctElements> DistinctOf(const TorchTensorPart& part, const Shape& shape) const {
    const TensorRefs refs = tensors_[part.tensor];
    if (refs.size() > 1 || refs[0].tensor().shape != shape) return std::nullopt;
    return DistinctElements::Of(shape.dims(), refs[0].tensor().strides);
  }

  absl::Status ReadDistinctOf(const StateKey& key, const TorchTensorPart& part, const Interval& interval,
                              std::byte* out) const {
    const std::optional<DistinctElements> distinct = DistinctOf(part, state_.contents.FindTensor(key)->shape);
    if (!distinct) return absl::UnimplementedError("it is a part or a concatenation of views");
    const TensorRef ref = tensors_[part.tensor][0];
    const DType dtype = ref.dtype();
    const StridedView view = {ref.first_byte(), SizeOf(dtype), distinct->shape, distinct->strides};
    FSDP_RETURN_IF_ERROR(ReadStridedInterval(ref.file->payload(), view, interval, out));
    return dtype == DType::kBool ? CheckBoolBytes(out, interval) : absl::OkStatus();
  }

  // Owns the files that tensors_ and first_storages_ point to.
  TorchFiles files_;
  const TensorList tensors_;
  std::vector<int> views_;                                         // by tensor: TorchLeafType::identity
  absl::flat_hash_map<const TorchFile*, int64_t> first_storages_;  // the number of the first storage of each file
  int64_t storage_count_ = 0;                                      // over all files
  TorchState state_;
  int world_size_ = 1;
  const std::map<std::string, std::string> metadata_ = {};  // torch files do not have metadata
};

// As copies, else as shards. Every byte proves copies. Sizes prove shards: together the parts of each parameter's state
// have its size, and separately they have not.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenRankFiles(const std::string& path,
                                                            const std::vector<std::string>& names,
                                                            const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const TorchFiles files, OpenTorchFiles(path, names, options));
  const auto open = [&](RankState state) -> absl::StatusOr<std::unique_ptr<TensorSource>> {
    absl::StatusOr<JoinedFiles> joined = JoinRankFiles(files, state);
    if (!joined.ok()) return Annotate(joined.status(), path);
    return TorchSource::Create(path, *std::move(joined), options);
  };
  absl::StatusOr<std::unique_ptr<TensorSource>> copies =
      open(options.model_only ? RankState::kLeftOut : RankState::kCopies);
  if (copies.ok() || !MayHoldShards(RankFilesOf(files))) return copies;
  return open(RankState::kShards);
}

absl::StatusOr<bool> Exists(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(path));
  return type != fs::file_type::not_found;
}

}  // namespace

absl::StatusOr<bool> IsTorchDirectory(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_adapter, IsAdapter(directory, kTorchAdapterName));
  if (is_adapter) return true;
  for (const char* name : {kTorchModelName, kTorchIndexName}) {
    FSDP_ASSIGN_OR_RETURN(const bool exists, Exists(JoinPath(directory, name)));
    if (exists) return true;
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> ranks, RankFilesIn(directory));
  // The parts of DTensors are joined by another reader.
  return !ranks.empty() && !HasDTensors(JoinPath(directory, ranks[0]));
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchSource(const std::string& path,
                                                              const TensorSourceOptions& options) {
  std::string file_path = path;
  FSDP_ASSIGN_OR_RETURN(const fs::file_type type, TypeOfTarget(path));
  if (type == fs::file_type::directory) {
    file_path = JoinPath(path, kTorchModelName);
    FSDP_ASSIGN_OR_RETURN(const bool has_model, Exists(file_path));
    FSDP_ASSIGN_OR_RETURN(const bool has_index, Exists(JoinPath(path, kTorchIndexName)));
    FSDP_ASSIGN_OR_RETURN(const bool is_adapter, IsAdapter(path, kTorchAdapterName));
    if (!has_model && !has_index && is_adapter) {
      file_path = JoinPath(path, kTorchAdapterName);
    } else if (!has_model) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> ranks, RankFilesIn(path));
      if (!ranks.empty() && !has_index) return OpenRankFiles(path, ranks, options);
      FSDP_ASSIGN_OR_RETURN(JoinedFiles joined, JoinIndexedFiles(path, options));
      return TorchSource::Create(path, std::move(joined), options);
    }
  }
  FSDP_ASSIGN_OR_RETURN(JoinedFiles joined, JoinOneFile(file_path, options));
  return TorchSource::Create(path, std::move(joined), options);
}

const FormatTraits& TorchTraits() {
  static const auto* traits =
      new FormatTraits{.name = "torch",
                       .headline = "a torch checkpoint",
                       .in_directory = "pytorch_model.bin, an index of several or a torch file of each rank",
                       .file = "a torch file",
                       .suffixes = {".pt", ".pth", ".bin"},
                       .model_file = kTorchModelName,
                       .has_layout = true,
                       .is_plain = true};
  return *traits;
}

}  // namespace fsdp
