// SPDX-License-Identifier: Apache-2.0
//
// One source for three ways to save, which differ only in how several trees become one tree and their tensors one list:
//
//   a file            the tree of the file                          each tensor is one TensorRef
//   files + an index  one dict; every member is a tensor            each tensor is one TensorRef
//   a file of a rank  MergeRankTrees: members of all ranks          one TensorRef, or a shard of each rank in order
//
// From there on torch_state.h finds the state dict, and a read is: leaf -> tensor of the list -> shards that overlap
// the interval -> view -> bytes of the storage. All metadata is read when the source is opened; reads only touch
// payload.
#include "fsdp/checkpoint/foreign/torch/pt/torch_source.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/foreign/torch/pt/rank_files.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/distinct_elements.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

using TorchFiles = std::vector<std::unique_ptr<TorchFile>>;

// Tensor `index` of file `file`.
struct TensorRef {
  const TorchFile* file = nullptr;
  int index = 0;
};

// A tensor of the merged tree: one tensor of one file, or the one-dimensional shards of all ranks, which it
// concatenates.
using TensorRefs = absl::InlinedVector<TensorRef, 1>;

const TorchTensors& TensorsOf(const TensorRef& ref) { return ref.file->archive().tree.tensors; }
TorchTensor TensorOf(const TensorRef& ref) { return TensorsOf(ref)[ref.index]; }
DType DTypeOf(const TensorRef& ref) { return TensorsOf(ref).dtype(ref.index); }

// The tensors of the tree by number. A list of a million tensors of one file each would take 24 MB, so it is not
// stored: the tensors of a file follow the previous file's.
class TensorList {
 public:
  // Every tensor of every file.
  explicit TensorList(const TorchFiles& files) {
    for (const std::unique_ptr<TorchFile>& file : files) {
      firsts_.push_back(size_);
      files_.push_back(file.get());
      size_ += static_cast<int64_t>(file->archive().tree.tensors.size());
    }
  }
  explicit TensorList(std::vector<TensorRefs> refs)
      : size_(static_cast<int64_t>(refs.size())), refs_(std::move(refs)) {}

  int64_t size() const { return size_; }

  TensorRefs operator[](int64_t i) const {
    if (files_.empty()) return refs_[i];
    const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), i);
    const auto file = static_cast<size_t>(after - firsts_.begin() - 1);
    return {TensorRef{files_[file], static_cast<int>(i - firsts_[file])}};
  }

 private:
  int64_t size_ = 0;
  std::vector<int64_t> firsts_;  // by file: its first tensor
  std::vector<const TorchFile*> files_;
  std::vector<TensorRefs> refs_;  // of merged tensors; files_ is empty then
};

class TorchSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  // `root` is the tree of all files, which refers to its tensors by index into `tensors`; it is not kept. `ranks` is
  // the number of ranks that saved a file each, 1 for the other ways to save. Errors of the state dict get the path as
  // a prefix.
  static absl::StatusOr<std::unique_ptr<TensorSource>> Create(const std::string& path, TorchFiles files, TorchNode root,
                                                              TensorList list, int ranks,
                                                              const TensorSourceOptions& options) {
    std::unique_ptr<TorchSource> source(new TorchSource(std::move(list)));
    const TensorList& tensors = source->tensors_;
    source->NumberStorages(files);
    source->FindViews();
    const TorchLeafTypes types(tensors.size(), [&](int i) { return TypeOf(tensors[i], source->views_[i]); });
    const TorchTensorReader read = [&](int tensor, const Interval& interval, std::byte* out) {
      return ReadRefs(tensors[tensor], interval, out);
    };
    absl::StatusOr<TorchState> state =
        StateOfTree(std::move(root), types,
                    {.read = read,
                     .flat = {.layout = options.flat_layout ? &*options.flat_layout : nullptr, .world_size = ranks},
                     .model_only = options.model_only});
    if (!state.ok()) {
      return Annotate(state.status(), path);
    }
    source->files_ = std::move(files);
    source->state_ = *std::move(state);
    source->state_.path = path;
    source->world_size_ = ranks;
    return source;
  }

  const TensorViews* views() const override { return this; }
  const CoveringChecksums* covering_checksums() const override { return this; }
  const FormatTraits& traits() const override { return TorchTraits(); }
  const StateDict& contents() const override { return state_.contents; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  std::vector<std::string> files() const override {
    std::vector<std::string> paths;
    for (const std::unique_ptr<TorchFile>& file : files_) paths.push_back(file->path());
    return paths;
  }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      const TensorRefs refs = tensors_[tensor];
      absl::Status status = ReadRefs(refs, elements, to);
      if (status.ok() && DTypeOf(refs[0]) == DType::kBool) status = CheckBoolBytes(to, interval);
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
    for (const std::unique_ptr<TorchFile>& file : files_) {
      const absl::Status status = ReadForChecksums(file->payload(), file->checksums().Missing());
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
    const TorchTensor tensor = TensorOf(refs[0]);
    if (refs.size() > 1) return absl::UnimplementedError("its elements are in the files of several ranks");
    if (!tensor.is_contiguous()) {
      return absl::UnimplementedError(absl::StrCat("it is a view with strides [", absl::StrJoin(tensor.strides, ", "),
                                                   "], whose elements are not contiguous"));
    }
    const Shape& shape = state_.contents.FindTensor(key)->shape;  // the shape of the part, if the tensor is a flat one
    Box whole = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}};
    const int64_t first = First(refs[0]) + part->offset * SizeOf(tensor.dtype);
    return std::vector<TensorPlace>{{refs[0].file->path(), first, std::move(whole)}};
  }

  // A concatenation of shards, or a part of a flat parameter, counts as a separate view.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const TensorRefs refs = tensors_[part.tensor];
    if (refs.size() == 1) {
      const TorchTensor tensor = TensorOf(refs[0]);
      // Negative numbers for parts, so that they never equal a number of a whole view.
      const bool is_part = state_.contents.FindTensor(key)->shape != tensor.shape;
      return TensorStorage{.id = StorageNumber(refs[0]),
                           .nbytes = tensor.storage.nbytes,
                           .view = is_part ? -1 - part.offset : views_[part.tensor],
                           .touched_bytes = tensor.touched_bytes(),
                           .distinct_numel = is_part ? 0 : DistinctOf(part, tensor.shape)->shape.numel()};
    }
    int64_t nbytes = 0;
    for (const TensorRef& ref : refs) nbytes += TensorOf(ref).touched_bytes();
    return TensorStorage{.id = -1 - part.tensor, .nbytes = nbytes, .view = part.offset, .touched_bytes = nbytes};
  }

 private:
  explicit TorchSource(TensorList tensors) : tensors_(std::move(tensors)) {}

  void NumberStorages(const TorchFiles& files) {
    for (const std::unique_ptr<TorchFile>& file : files) {
      first_storages_[file.get()] = storage_count_;
      storage_count_ += static_cast<int64_t>(file->archive().tree.tensors.storage_count());
    }
  }

  // The number of a tensor's storage among the storages of all files.
  int64_t StorageNumber(const TensorRef& ref) const {
    return first_storages_.at(ref.file) + TensorsOf(ref).storage_of(ref.index);
  }

  // Equal views of one storage are one tensor under several names (tied weights): views_ has the number of the first of
  // them. Most storages have only one view and need no search.
  void FindViews() {
    using View = std::tuple<int64_t, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;
    absl::flat_hash_map<View, int> others;  // for storages with different views
    const auto view_of = [this](const TensorRef& ref) {
      const TorchTensor tensor = TensorOf(ref);
      return View(StorageNumber(ref), tensor.offset, tensor.dtype,
                  {tensor.shape.dims().begin(), tensor.shape.dims().end()},
                  {tensor.strides.begin(), tensor.strides.end()});
    };
    std::vector<int> first_views(storage_count_, -1);
    views_.assign(tensors_.size(), -1);
    for (int64_t i = 0; i < tensors_.size(); ++i) {
      const TensorRefs refs = tensors_[i];
      // The concatenation of shards has one name. A tensor without elements shares nothing.
      if (refs.size() > 1 || TensorsOf(refs[0]).shape(refs[0].index).numel() == 0) continue;
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
    if (refs.size() == 1) return {DTypeOf(refs[0]), TensorsOf(refs[0]).shape(refs[0].index), view};
    int64_t numel = 0;
    for (const TensorRef& ref : refs) numel += TensorsOf(ref).shape(ref.index).numel();
    return {DTypeOf(refs[0]), {numel}};
  }

  // "tensor "model/w", data/0 of model.pt".
  static std::string Place(const StateKey& key, const TensorRef& ref) {
    return absl::StrCat("tensor ", Quote(key.ToString()), ", ", ref.file->place(ref.index).entry, " of ",
                        ref.file->path());
  }

  // The offset in the file of the first element of the view.
  static int64_t First(const TensorRef& ref) {
    const TorchTensor tensor = TensorOf(ref);
    return ref.file->offset(ref.index) + tensor.offset * SizeOf(tensor.dtype);
  }

  // Reads each shard's part of `interval`. Shards are few: one for each rank of a run.
  static absl::Status ReadRefs(const TensorRefs& refs, const Interval& interval, std::byte* out) {
    if (refs.size() == 1) return ReadView(refs[0], interval, out);
    int64_t begin = 0;  // of this shard, in elements of the whole
    for (const TensorRef& ref : refs) {
      const TorchTensor tensor = TensorOf(ref);
      const Interval part = Intersect(interval, {begin, begin + tensor.shape.numel()});
      if (!part.empty()) {
        std::byte* const to = out + (part.begin - interval.begin) * SizeOf(tensor.dtype);
        FSDP_RETURN_IF_ERROR(ReadView(ref, {part.begin - begin, part.end - begin}, to));
      }
      begin += tensor.shape.numel();
    }
    return absl::OkStatus();
  }

  static absl::Status ReadView(const TensorRef& ref, const Interval& interval, std::byte* out) {
    const TorchTensor tensor = TensorOf(ref);
    const int64_t size = SizeOf(tensor.dtype);
    if (tensor.is_contiguous()) {
      return ref.file->payload().Read(First(ref) + interval.begin * size, absl::MakeSpan(out, interval.size() * size));
    }
    return ReadStridedInterval(ref.file->payload(), {First(ref), size, tensor.shape, tensor.strides}, interval, out);
  }

  // The distinct elements of a tensor that is one whole view; nullopt for parts and concatenations of views.
  std::optional<DistinctElements> DistinctOf(const TorchTensorPart& part, const Shape& shape) const {
    const TensorRefs refs = tensors_[part.tensor];
    if (refs.size() > 1 || TensorOf(refs[0]).shape != shape) return std::nullopt;
    return DistinctElements::Of(shape.dims(), TensorOf(refs[0]).strides);
  }

  absl::Status ReadDistinctOf(const StateKey& key, const TorchTensorPart& part, const Interval& interval,
                              std::byte* out) const {
    const std::optional<DistinctElements> distinct = DistinctOf(part, state_.contents.FindTensor(key)->shape);
    if (!distinct) return absl::UnimplementedError("it is a part or a concatenation of views");
    const TensorRef ref = tensors_[part.tensor][0];
    const DType dtype = DTypeOf(ref);
    const StridedView view = {First(ref), SizeOf(dtype), distinct->shape, distinct->strides};
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

// Adds the members of a file's tree to the tree of all files; its tensors are numbered from `first`. Index and file
// must agree on every tensor, so that a single replaced file is noticed.
absl::Status AddMembers(const TorchFile& file, const HuggingFaceIndex& index, int first, TorchNode& root) {
  const std::string name = fs::path(file.path()).filename();
  for (const auto& [tensor, node] : file.archive().tree.root.members()) {
    const auto at = index.weight_map.find(tensor);
    if (node.kind() != TorchNode::Kind::kTensor) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": ", Quote(tensor), " is not a tensor, but the files of an index hold a plain state dict"));
    }
    if (at == index.weight_map.end() || at->second != name) {
      return absl::DataLossError(
          absl::StrCat("tensor ", Quote(tensor), " of ", file.path(), " is not placed there by ", kTorchIndexName));
    }
    root.Add(tensor, TorchNode::Tensor(first + node.tensor()));
  }
  return absl::OkStatus();
}

// Every tensor of the index must be in the file that the index names, and the files must not contain anything else.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenIndexed(const std::string& path, const TensorSourceOptions& options) {
  const std::string index_path = fs::path(path) / kTorchIndexName;
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), index_path, kMaxHuggingFaceIndexBytes));
  const absl::StatusOr<HuggingFaceIndex> index = ParseHuggingFaceIndex(text);
  if (!index.ok()) {
    return absl::Status(index.status().code(), absl::StrCat(std::string(index.status().message()), " in ", index_path));
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : index->weight_map) names.insert(file);
  TorchFiles files;
  TorchNode root;
  int tensors = 0;
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::Open(fs::path(path) / name, options));
    FSDP_RETURN_IF_ERROR(AddMembers(*file, *index, tensors, root));
    tensors += static_cast<int>(file->archive().tree.tensors.size());
    files.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : index->weight_map) {
    if (root.Find(tensor) != nullptr) continue;
    return absl::DataLossError(absl::StrCat("tensor ", Quote(tensor), " is missing in ", Quote(file), ", in which ",
                                            index_path, " places it"));
  }
  TensorList all(files);
  return TorchSource::Create(path, std::move(files), std::move(root), std::move(all), 1, options);
}

// `names` are the files of the ranks, in rank order.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenRankFiles(const std::string& path,
                                                            const std::vector<std::string>& names,
                                                            const TensorSourceOptions& options) {
  TorchFiles files;
  std::vector<const TorchNode*> roots;
  std::vector<std::vector<TorchLeafType>> types;
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(files.emplace_back(), TorchFile::Open(fs::path(path) / name, options));
    const TorchTree& tree = files.back()->archive().tree;
    roots.push_back(&tree.root);
    types.emplace_back();
    for (size_t i = 0; i < tree.tensors.size(); ++i) {
      types.back().push_back({tree.tensors.dtype(i), tree.tensors.shape(i)});
    }
  }
  absl::StatusOr<RankTree> merged = MergeRankTrees(roots, types);
  if (!merged.ok()) {
    return Annotate(merged.status(), path);
  }
  std::vector<TensorRefs> tensors;
  for (const auto& parts : merged->tensors) {
    TensorRefs& refs = tensors.emplace_back();
    for (const RankTree::Part& part : parts) refs.push_back({files[part.rank].get(), part.tensor});
  }
  const auto ranks = static_cast<int>(files.size());
  return TorchSource::Create(path, std::move(files), std::move(merged->root), TensorList(std::move(tensors)), ranks,
                             options);
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

bool IsTorchDirectory(const std::string& directory) {
  return Exists(fs::path(directory) / kTorchModelName) || Exists(fs::path(directory) / kTorchIndexName) ||
         !RankFilesIn(directory).empty();
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenTorchSource(const std::string& path,
                                                              const TensorSourceOptions& options) {
  std::string file_path = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    file_path = fs::path(path) / kTorchModelName;
    if (!Exists(file_path)) {
      const std::vector<std::string> ranks = RankFilesIn(path);
      if (!ranks.empty() && !Exists(fs::path(path) / kTorchIndexName)) return OpenRankFiles(path, ranks, options);
      return OpenIndexed(path, options);
    }
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::Open(file_path, options));
  TorchNode root = file->TakeRoot();
  TorchFiles files;
  files.push_back(std::move(file));
  TensorList tensors(files);
  return TorchSource::Create(path, std::move(files), std::move(root), std::move(tensors), 1, options);
}

const FormatTraits& TorchTraits() {
  static const auto* traits =
      new FormatTraits{.name = "torch",
                       .headline = "a torch checkpoint",
                       .in_directory = "pytorch_model.bin, an index of several or a torch file of each rank",
                       .file = "a torch file",
                       .suffixes = {".pt", ".pth", ".bin"},
                       .model_file = kTorchModelName,
                       .is_plain = true};
  return *traits;
}

}  // namespace fsdp
