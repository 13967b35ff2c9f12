// SPDX-License-Identifier: Apache-2.0
//
// One source for three ways to save, which differ only in how their trees become one tree and their tensors one list:
//
//   a file            the tree of the file                          each tensor is one TensorRef
//   files + an index  one dict; every member is a tensor            each tensor is one TensorRef
//   a file of a rank  MergeRankTrees: members of all ranks          one TensorRef, or a shard of each rank in order
//
// From there on torch_state.h finds the state dict, and a read is: leaf -> tensor of the list -> shards that meet the
// interval -> view -> bytes of the storage. All metadata is read when the source is opened; reads only touch payload.
#include "fsdp/checkpoint/torch/pt/torch_source.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/checkpoint/safetensors/hugging_face_index.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/torch/pt/rank_files.h"
#include "fsdp/checkpoint/torch/pt/strided_read.h"
#include "fsdp/checkpoint/torch/pt/torch_file.h"
#include "fsdp/checkpoint/torch/state/distinct_elements.h"
#include "fsdp/checkpoint/torch/state/torch_state.h"
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

// A tensor of the tree of all files: one tensor of one file, or the shards of all ranks, each of one dimension, whose
// concatenation it is.
using TensorRefs = absl::InlinedVector<TensorRef, 1>;

const TorchTensor& TensorOf(const TensorRef& ref) { return ref.file->archive().tree.tensors[ref.index]; }

class TorchSource final : public TensorSource {
 public:
  // `root` is the tree of all files, whose tensors go by index into `tensors`; it is not kept. `ranks` is the number of
  // ranks that saved a file each, 1 for the other ways to save. Errors of the state dict get the path in front.
  static absl::StatusOr<std::unique_ptr<TensorSource>> Create(const std::string& path, TorchFiles files, TorchNode root,
                                                              std::vector<TensorRefs> tensors, int ranks,
                                                              const TensorSourceOptions& options) {
    std::unique_ptr<TorchSource> source(new TorchSource());
    std::vector<TorchLeafType> types;
    types.reserve(tensors.size());
    Identities identities;
    for (const TensorRefs& refs : tensors) types.push_back(TypeOf(refs, identities));
    const TorchTensorReader read = [&](int tensor, const Interval& interval, std::byte* out) {
      return ReadRefs(tensors[tensor], interval, out);
    };
    absl::StatusOr<TorchState> state =
        StateOfTree(root, types,
                    {.read = read,
                     .flat = {.layout = options.flat_layout ? &*options.flat_layout : nullptr, .world_size = ranks},
                     .model_only = options.model_only});
    if (!state.ok()) {
      return Annotate(state.status(), path);
    }
    for (const TorchLeafType& type : types) source->views_.push_back(type.identity);
    source->NumberStorages(files);
    source->files_ = std::move(files);
    source->tensors_ = std::move(tensors);
    source->state_ = *std::move(state);
    source->state_.path = path;
    source->world_size_ = ranks;
    return source;
  }

  std::string_view format() const override { return "torch"; }
  const StateDict& contents() const override { return state_.contents; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      const TensorRef& first = tensors_[tensor][0];
      absl::Status status = ReadRefs(tensors_[tensor], elements, to);
      if (status.ok() && TensorOf(first).dtype == DType::kBool) status = CheckBoolBytes(to, interval);
      if (status.ok()) return status;
      return Annotate(status, Place(key, first));
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

  // One place, if the elements lie in one file and one after the other.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in the pickle, not a tensor");
    const TensorRefs& refs = tensors_[part->tensor];
    const TorchTensor& tensor = TensorOf(refs[0]);
    if (refs.size() > 1) return absl::UnimplementedError("its elements lie in the files of several ranks");
    if (!tensor.is_contiguous()) {
      return absl::UnimplementedError(absl::StrCat("it is a view with strides [", absl::StrJoin(tensor.strides, ", "),
                                                   "], whose elements lie apart"));
    }
    const Shape& shape = state_.contents.FindTensor(key)->shape;  // that of a part, where the tensor is a flat one
    Box whole = {std::vector<int64_t>(shape.rank(), 0), {shape.dims().begin(), shape.dims().end()}};
    const int64_t first = First(refs[0]) + part->offset * SizeOf(tensor.dtype);
    return std::vector<TensorPlace>{{refs[0].file->path(), first, std::move(whole)}};
  }

  // A tensor of several shards, or a part of a flat parameter, is a view of its own.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const TensorRefs& refs = tensors_[part.tensor];
    if (refs.size() == 1) {
      const TorchTensor& tensor = TensorOf(refs[0]);
      const bool is_part = state_.contents.FindTensor(key)->shape != tensor.shape;
      return TensorStorage{.id = storages_.at({refs[0].file, tensor.storage.key}),
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
  TorchSource() = default;

  void NumberStorages(const TorchFiles& files) {
    for (const std::unique_ptr<TorchFile>& file : files) {
      for (const TorchTensor& tensor : file->archive().tree.tensors) {
        storages_.try_emplace({file.get(), tensor.storage.key}, static_cast<int64_t>(storages_.size()));
      }
    }
  }

  // Equal views of one storage are one tensor under several names (tied weights): its number. By the first view of
  // each.
  struct ViewHash {
    size_t operator()(const TensorRef& ref) const {
      const TorchTensor& tensor = TensorOf(ref);
      return absl::HashOf(ref.file, tensor.storage.key, tensor.offset, tensor.shape.dims());
    }
  };
  struct SameView {
    bool operator()(const TensorRef& a, const TensorRef& b) const {
      const TorchTensor& x = TensorOf(a);
      const TorchTensor& y = TensorOf(b);
      return a.file == b.file && x.storage.key == y.storage.key && x.offset == y.offset && x.shape == y.shape &&
             x.strides == y.strides && x.dtype == y.dtype;
    }
  };
  using Identities = absl::flat_hash_map<TensorRef, int, ViewHash, SameView>;

  // The concatenation of shards has their dtype and the sum of their lengths; it has one name, so no identity. A tensor
  // without elements shares nothing.
  static TorchLeafType TypeOf(const TensorRefs& refs, Identities& identities) {
    const TorchTensor& tensor = TensorOf(refs[0]);
    if (refs.size() == 1) {
      TorchLeafType type = {tensor.dtype, tensor.shape};
      if (tensor.shape.numel() == 0) return type;
      type.identity = identities.try_emplace(refs[0], static_cast<int>(identities.size())).first->second;
      return type;
    }
    int64_t numel = 0;
    for (const TensorRef& ref : refs) numel += TensorOf(ref).shape.numel();
    return {tensor.dtype, {numel}};
  }

  // "tensor "model/w", data/0 of model.pt".
  static std::string Place(const StateKey& key, const TensorRef& ref) {
    return absl::StrCat("tensor ", Quote(key.ToString()), ", ", ref.file->place(ref.index).entry, " of ",
                        ref.file->path());
  }

  // The byte of the file where the first element of the view lies.
  static int64_t First(const TensorRef& ref) {
    const TorchTensor& tensor = TensorOf(ref);
    return ref.file->place(ref.index).offset + tensor.offset * SizeOf(tensor.dtype);
  }

  // Reads the parts of `interval` that lie in each shard. Shards are few: ranks of one run.
  static absl::Status ReadRefs(const TensorRefs& refs, const Interval& interval, std::byte* out) {
    if (refs.size() == 1) return ReadView(refs[0], interval, out);
    int64_t begin = 0;  // of this shard, in elements of the whole
    for (const TensorRef& ref : refs) {
      const TorchTensor& tensor = TensorOf(ref);
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
    const TorchTensor& tensor = TensorOf(ref);
    const int64_t size = SizeOf(tensor.dtype);
    if (tensor.is_contiguous()) {
      return ref.file->payload().Read(First(ref) + interval.begin * size, absl::MakeSpan(out, interval.size() * size));
    }
    return ReadStridedInterval(ref.file->payload(), {First(ref), size, tensor.shape, tensor.strides}, interval, out);
  }

  // The distinct elements of a tensor that is one whole view; nullopt for the parts and the concatenations of views.
  std::optional<DistinctElements> DistinctOf(const TorchTensorPart& part, const Shape& shape) const {
    const TensorRefs& refs = tensors_[part.tensor];
    if (refs.size() > 1 || TensorOf(refs[0]).shape != shape) return std::nullopt;
    return DistinctElements::Of(shape.dims(), TensorOf(refs[0]).strides);
  }

  absl::Status ReadDistinctOf(const StateKey& key, const TorchTensorPart& part, const Interval& interval,
                              std::byte* out) const {
    const std::optional<DistinctElements> distinct = DistinctOf(part, state_.contents.FindTensor(key)->shape);
    if (!distinct) return absl::UnimplementedError("it is a part or a concatenation of views");
    const TensorRef& ref = tensors_[part.tensor][0];
    const DType dtype = TensorOf(ref).dtype;
    const StridedView view = {First(ref), SizeOf(dtype), distinct->shape, distinct->strides};
    FSDP_RETURN_IF_ERROR(ReadStridedInterval(ref.file->payload(), view, interval, out));
    return dtype == DType::kBool ? CheckBoolBytes(out, interval) : absl::OkStatus();
  }

  TorchFiles files_;
  std::vector<TensorRefs> tensors_;
  std::vector<int> views_;  // by tensor: TorchLeafType::identity
  absl::flat_hash_map<std::pair<const TorchFile*, std::string_view>, int64_t> storages_;  // keys are those of tensors
  TorchState state_;
  int world_size_ = 1;
  const std::map<std::string, std::string> metadata_ = {};  // torch files have none
};

// Every tensor of every file as one list: those of a file come after those of the files before it.
std::vector<TensorRefs> TensorsOf(const TorchFiles& files) {
  std::vector<TensorRefs> tensors;
  size_t total = 0;
  for (const std::unique_ptr<TorchFile>& file : files) total += file->archive().tree.tensors.size();
  tensors.reserve(total);
  for (const std::unique_ptr<TorchFile>& file : files) {
    const auto count = static_cast<int>(file->archive().tree.tensors.size());
    for (int i = 0; i < count; ++i) tensors.push_back({{file.get(), i}});
  }
  return tensors;
}

// Adds the members of a file's tree to the tree of all files; its tensors are numbered from `first`. Index and file
// must agree on every tensor, so that a file that was replaced alone is noticed.
absl::Status AddMembers(const TorchFile& file, const HuggingFaceIndex& index, int first, TorchNode& root) {
  const std::string name = fs::path(file.path()).filename();
  for (const auto& [tensor, node] : file.archive().tree.root.members()) {
    const auto at = index.weight_map.find(tensor);
    if (node.kind() != TorchNode::Kind::kTensor) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": ", Quote(tensor), " is no tensor, but the files of an index hold a plain state dict"));
    }
    if (at == index.weight_map.end() || at->second != name) {
      return absl::DataLossError(
          absl::StrCat("tensor ", Quote(tensor), " of ", file.path(), " is not placed there by ", kTorchIndexName));
    }
    root.Add(tensor, TorchNode::Tensor(first + node.tensor()));
  }
  return absl::OkStatus();
}

// Every tensor of the index must be in the file that the index names, and nothing else in any of the files.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenIndexed(const std::string& path, const TensorSourceOptions& options) {
  const std::string index_path = fs::path(path) / kTorchIndexName;
  constexpr int64_t kMaxIndexBytes = 100'000'000;
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), index_path, kMaxIndexBytes));
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
    return absl::DataLossError(
        absl::StrCat("tensor ", Quote(tensor), " is missing in ", Quote(file), ", where ", index_path, " places it"));
  }
  std::vector<TensorRefs> all = TensorsOf(files);
  return TorchSource::Create(path, std::move(files), std::move(root), std::move(all), 1, options);
}

// `names` are the files of the ranks, in their order.
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
    for (const TorchTensor& tensor : tree.tensors) types.back().push_back({tensor.dtype, tensor.shape});
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
  return TorchSource::Create(path, std::move(files), std::move(merged->root), std::move(tensors), ranks, options);
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
  std::vector<TensorRefs> tensors = TensorsOf(files);
  return TorchSource::Create(path, std::move(files), std::move(root), std::move(tensors), 1, options);
}

}  // namespace fsdp
