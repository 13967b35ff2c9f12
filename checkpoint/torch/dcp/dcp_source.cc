// SPDX-License-Identifier: Apache-2.0
//
// Opening reads .metadata and the archives of plain values. An archive of a chunk is parsed (directory and pickle, two
// small reads) when a read first needs it, and its place is kept: a directory of a large run has millions of chunks,
// and a program that loads its shard needs few of them. Dtype and shape in the archive must be those in .metadata.
//
// A read of row-major elements [begin, end) of a tensor is a few boxes (BoxesOf); each is intersected with the boxes of
// the chunks, and the parts that are not empty are read with the strides that the chunk has in its file and the tensor
// has in memory (strided_read.h). Chunks cover a tensor exactly once, so every element is written once.
#include "fsdp/checkpoint/torch/dcp/dcp_source.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/torch/pt/file_pool.h"
#include "fsdp/checkpoint/torch/pt/strided_read.h"
#include "fsdp/checkpoint/torch/pt/torch_file.h"
#include "fsdp/checkpoint/torch/state/distinct_elements.h"
#include "fsdp/checkpoint/torch/state/torch_state.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxMetadataBytes = int64_t{1} << 30;

absl::Status In(const absl::Status& status, const std::string& place) { return Annotate(status, place); }

// Where the elements of a chunk lie in its file; known once its archive has been read.
struct ChunkPlace {
  int64_t offset = 0;            // in the file, of the first element
  std::vector<int64_t> strides;  // in elements
  bool is_contiguous = true;
  int64_t touched_bytes = 0;  // TorchTensor::touched_bytes
};

class DcpSource final : public TensorSource {
 public:
  DcpSource(std::string path, DcpMetadata metadata, const TensorSourceOptions& options)
      : path_(std::move(path)),
        metadata_(std::move(metadata)),
        options_(options),
        files_(path_, options),
        places_(metadata_.tensors.size()) {}

  // Builds the tree from the entries of .metadata and finds the state dict in it. Values are read from their archives,
  // since they decide what the state dict is (param_groups); tensors are not.
  absl::Status ReadState() {
    TorchNode root;
    for (const DcpEntry& entry : metadata_.entries) {
      absl::StatusOr<TorchNode> leaf = entry.tensor() != nullptr
                                           ? TorchNode::Tensor(*entry.tensor())
                                           : ReadValue(entry.name, std::get<DcpSlice>(entry.content));
      FSDP_RETURN_IF_ERROR(leaf.status());
      FSDP_RETURN_IF_ERROR(Insert(entry, *std::move(leaf), root));
    }
    std::vector<TorchLeafType> types;
    std::set<std::string> names;
    for (const DcpTensor& tensor : metadata_.tensors) {
      types.push_back({tensor.dtype, tensor.shape});
      for (const DcpChunk& chunk : tensor.chunks) names.insert(chunk.slice.file);
    }
    world_size_ = std::max<int>(1, static_cast<int>(names.size()));
    const TorchTensorReader read = [this](int tensor, const Interval& interval, std::byte* out) {
      return ReadTensor(tensor, interval, out);
    };
    absl::StatusOr<TorchState> state = StateOfTree(
        std::move(root), types,
        {.read = read,
         .flat = {.layout = options_.flat_layout ? &*options_.flat_layout : nullptr, .world_size = world_size_},
         .model_only = options_.model_only});
    if (!state.ok()) return In(state.status(), path_);
    state_ = *std::move(state);
    state_.path = path_;
    return absl::OkStatus();
  }

  std::string_view format() const override { return "dcp"; }
  const StateDict& contents() const override { return state_.contents; }
  int64_t step() const override { return state_.step.value_or(-1); }
  int world_size() const override { return world_size_; }
  const std::map<std::string, std::string>& metadata() const override { return string_metadata_; }

  absl::Status Read(const StateKey& key, const Interval& interval, void* out) const override {
    const std::string name = absl::StrCat("tensor ", Quote(key.ToString()));
    const TorchTensorReader read = [&](int tensor, const Interval& elements, std::byte* to) {
      const absl::Status status = ReadTensor(tensor, elements, to);
      if (!status.ok()) return In(status, name);
      if (metadata_.tensors[tensor].dtype != DType::kBool) return absl::OkStatus();
      const absl::Status is_bool = CheckBoolBytes(to, interval);
      return is_bool.ok() ? is_bool : In(is_bool, absl::StrCat(name, " of ", path_));
    };
    return state_.Read(key, interval, read, static_cast<std::byte*>(out));
  }

  bool has_checksums() const override { return files_.has_checksums(); }

  absl::Status VerifyRest() const override { return files_.VerifyRest(); }

  // One place for each chunk, if every chunk is contiguous: this reads the archives of all of them.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in a pickle, not a tensor");
    const DcpTensor& tensor = metadata_.tensors[part->tensor];
    if (tensor.shape != state_.contents.FindTensor(key)->shape) {
      return absl::UnimplementedError("it is a part of a flat parameter of FSDP1");
    }
    std::vector<TensorPlace> places;
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      FSDP_ASSIGN_OR_RETURN(const ChunkPlace* place, PlaceOf(part->tensor, i));
      if (!place->is_contiguous) return absl::UnimplementedError("a chunk of it is a view whose elements lie apart");
      places.push_back({JoinPath(path_, tensor.chunks[i].slice.file), place->offset, tensor.chunks[i].box});
    }
    return places;
  }

  // A chunk is an archive of its own, so what may expand is the chunk. Reads the archives of all; a chunk that cannot
  // be read counts as what .metadata says it is, and reading it says what is wrong.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const DcpTensor& tensor = metadata_.tensors[part.tensor];
    const bool is_whole = tensor.shape == state_.contents.FindTensor(key)->shape;
    int64_t nbytes = 0;
    int64_t distinct = 0;
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      int64_t numel = 1;
      for (const int64_t count : tensor.chunks[i].box.count) numel *= count;
      const int64_t whole = numel * SizeOf(tensor.dtype);
      const absl::StatusOr<const ChunkPlace*> place = PlaceOf(part.tensor, i);
      nbytes += place.ok() ? std::min(whole, (*place)->touched_bytes) : whole;
      distinct += place.ok() ? DistinctOf(tensor.chunks[i], **place).shape.numel() : numel;
    }
    return TensorStorage{.id = part.tensor,
                         .nbytes = nbytes,
                         .view = part.offset,
                         .touched_bytes = nbytes,
                         .distinct_numel = is_whole ? distinct : 0};
  }

  // The distinct elements of chunk after chunk, in their order.
  absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr || metadata_.tensors[part->tensor].shape != state_.contents.FindTensor(key)->shape) {
      return absl::UnimplementedError("it is no tensor of .metadata");
    }
    auto* to = static_cast<std::byte*>(out);
    absl::Status status = ReadDistinctOf(part->tensor, interval, to);
    const bool is_bool = metadata_.tensors[part->tensor].dtype == DType::kBool;
    if (status.ok() && is_bool) status = CheckBoolBytes(to, interval);
    return status.ok() ? status : In(status, absl::StrCat("tensor ", Quote(key.ToString())));
  }

 private:
  // The length of the slice comes from .metadata: a file that is shorter is reported here, with both numbers.
  absl::StatusOr<TorchArchive> ReadArchive(const File& file, const DcpSlice& slice) const {
    FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
    if (slice.end() > nbytes) {
      return absl::DataLossError(absl::StrCat("bytes ", slice.offset, " to ", slice.end(),
                                              " are wanted, but the file has ", nbytes, ": it is truncated"));
    }
    return ReadTorchArchive({&file, slice.offset, slice.nbytes}, options_);
  }

  std::string Describe(const DcpSlice& slice) const {
    return absl::StrCat(JoinPath(path_, slice.file), ", bytes ", slice.offset, " to ", slice.end());
  }

  absl::StatusOr<TorchNode> ReadValue(const std::string& name, const DcpSlice& slice) {
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
    absl::StatusOr<TorchArchive> archive = ReadArchive(*file, slice);
    if (!archive.ok()) return In(archive.status(), absl::StrCat(Quote(name), " in ", Describe(slice)));
    if (archive->tree.tensors.empty()) return std::move(archive->tree.root);
    return absl::InvalidArgumentError(
        absl::StrCat(Quote(name), " in ", Describe(slice), ": a tensor inside of a pickled value is not read"));
  }

  // Puts `leaf` into the nested dicts and lists under `root` at the path of `entry`, making the branches on the way. A
  // path that another entry contradicts (a leaf where it needs a branch, a list index out of order) is damage.
  static absl::Status Insert(const DcpEntry& entry, TorchNode leaf, TorchNode& root) {
    const auto broken = [&] {
      return absl::DataLossError(absl::StrCat(
          Quote(entry.name), ": its path in planner_data is too deep, or contradicts that of another entry"));
    };
    if (entry.path.size() > static_cast<size_t>(kMaxTorchDepth)) return broken();
    TorchNode* node = &root;
    for (size_t i = 0; i < entry.path.size(); ++i) {
      const DcpEntry::PathElement& element = entry.path[i];
      if (!node->is_branch() || (!node->members().empty() && node->is_list != element.is_index)) return broken();
      node->is_list = element.is_index;
      const bool is_last = i + 1 == entry.path.size();
      TorchNode* next = is_last ? nullptr : node->Find(element.name);
      if (next == nullptr) {
        if (element.is_index && element.name != absl::StrCat(node->members().size())) return broken();
        next = node->Add(element.name, is_last ? std::move(leaf) : TorchNode());
        if (next == nullptr) return broken();
      }
      node = next;
    }
    return absl::OkStatus();
  }

  // Every chunk is compared with every box. A tensor has as many chunks as ranks hold it, and an interval few boxes.
  absl::Status ReadTensor(int index, const Interval& interval, std::byte* out) const {
    const DcpTensor& tensor = metadata_.tensors[index];
    for (const Box& box : BoxesOf(tensor.shape, interval)) {
      for (size_t i = 0; i < tensor.chunks.size(); ++i) {
        FSDP_RETURN_IF_ERROR(ReadPart(index, i, box, interval.begin, out));
      }
    }
    return absl::OkStatus();
  }

  // The place of chunk `index` of tensor `tensor`; its archive is read the first time, without the lock. Two threads
  // may both read it, and find the same. The result stays valid: a map does not move its values.
  absl::StatusOr<const ChunkPlace*> PlaceOf(int tensor, size_t index) const {
    const DcpChunk& chunk = metadata_.tensors[tensor].chunks[index];
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto at = places_[tensor].find(index);
      if (at != places_[tensor].end()) return &at->second;
    }
    absl::StatusOr<ChunkPlace> place = ReadPlace(metadata_.tensors[tensor], chunk);
    if (!place.ok()) return In(place.status(), Describe(chunk.slice));
    const std::lock_guard<std::mutex> lock(mutex_);
    return &places_[tensor].try_emplace(index, *std::move(place)).first->second;
  }

  absl::StatusOr<ChunkPlace> ReadPlace(const DcpTensor& tensor, const DcpChunk& chunk) const {
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(chunk.slice.file));
    FSDP_ASSIGN_OR_RETURN(const TorchArchive archive, ReadArchive(*file, chunk.slice));
    if (archive.tree.root.kind() != TorchNode::Kind::kTensor) return absl::DataLossError("it holds no tensor");
    const TorchTensor stored = archive.tree.tensors[0];
    const std::vector<int64_t>& wanted = chunk.box.count;
    if (stored.dtype != tensor.dtype) {
      return absl::DataLossError(absl::StrCat("its dtype is ", std::string(DTypeName(stored.dtype)),
                                              ", but .metadata says ", std::string(DTypeName(tensor.dtype))));
    }
    if (stored.shape.dims() != absl::MakeConstSpan(wanted)) {
      return absl::DataLossError(absl::StrCat("its shape is ", stored.shape.ToString(), ", but .metadata says ",
                                              Shape::Create(wanted)->ToString()));
    }
    files_.Expect(chunk.slice.file, archive);
    const int64_t storage = archive.tree.tensors.storage_offset(archive.tree.tensors.storage_of(0));
    return ChunkPlace{storage + stored.offset * SizeOf(stored.dtype),
                      {stored.strides.begin(), stored.strides.end()},
                      stored.is_contiguous(),
                      stored.touched_bytes()};
  }

  static DistinctElements DistinctOf(const DcpChunk& chunk, const ChunkPlace& place) {
    return DistinctElements::Of(chunk.box.count, place.strides);
  }

  absl::Status ReadDistinctOf(int index, const Interval& interval, std::byte* out) const {
    const DcpTensor& tensor = metadata_.tensors[index];
    const int64_t size = SizeOf(tensor.dtype);
    int64_t begin = 0;  // of the chunk, in distinct elements of the tensor
    for (size_t i = 0; i < tensor.chunks.size() && begin < interval.end; ++i) {
      FSDP_ASSIGN_OR_RETURN(const ChunkPlace* place, PlaceOf(index, i));
      const DistinctElements distinct = DistinctOf(tensor.chunks[i], *place);
      const Interval part = Intersect(interval, {begin, begin + distinct.shape.numel()});
      if (!part.empty()) {
        const DcpSlice& slice = tensor.chunks[i].slice;
        FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
        const absl::Status status =
            ReadStridedInterval(*file, {place->offset, size, distinct.shape, distinct.strides},
                                {part.begin - begin, part.end - begin}, out + (part.begin - interval.begin) * size);
        if (!status.ok()) return In(status, Describe(slice));
      }
      begin += distinct.shape.numel();
    }
    return absl::OkStatus();
  }

  // Reads the part of `box` that chunk `index` holds. `out` is the place of element `first` of the tensor, row-major.
  absl::Status ReadPart(int tensor_index, size_t index, const Box& box, int64_t first, std::byte* out) const {
    const DcpTensor& tensor = metadata_.tensors[tensor_index];
    const DcpChunk& chunk = tensor.chunks[index];
    std::vector<Interval> part;
    for (size_t d = 0; d < box.start.size(); ++d) {
      part.push_back(Intersect({box.start[d], box.start[d] + box.count[d]},
                               {chunk.box.start[d], chunk.box.start[d] + chunk.box.count[d]}));
      if (part.back().empty()) return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(const ChunkPlace* place, PlaceOf(tensor_index, index));
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(chunk.slice.file));
    const std::vector<int64_t> row_major = RowMajorStrides(tensor.shape);
    const int64_t size = SizeOf(tensor.dtype);
    StridedBox strided = {place->offset, size, {}};
    int64_t to = -first;
    for (size_t d = 0; d < part.size(); ++d) {
      strided.offset += (part[d].begin - chunk.box.start[d]) * place->strides[d] * size;
      to += part[d].begin * row_major[d];
      strided.dims.push_back({part[d].size(), place->strides[d], row_major[d]});
    }
    const absl::Status status = ReadStrided(*file, std::move(strided), out + to * size);
    return status.ok() ? status : In(status, Describe(chunk.slice));
  }

  const std::string path_;
  const DcpMetadata metadata_;
  const TensorSourceOptions options_;
  mutable FilePool files_;
  TorchState state_;
  int world_size_ = 1;
  const std::map<std::string, std::string> string_metadata_;
  mutable std::mutex mutex_;
  mutable std::vector<std::map<size_t, ChunkPlace>> places_;  // by tensor and chunk; guarded by mutex_
};

}  // namespace

bool IsDcpDirectory(const std::string& directory) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(directory) / kDcpMetadataName, ignored);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenDcpSource(const std::string& path,
                                                            const TensorSourceOptions& options) {
  const std::string metadata_path = JoinPath(path, kDcpMetadataName);
  FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(PosixFileSystem(), metadata_path, kMaxMetadataBytes));
  absl::StatusOr<DcpMetadata> metadata = ParseDcpMetadata(bytes);
  if (!metadata.ok()) return In(metadata.status(), metadata_path);
  auto source = std::make_unique<DcpSource>(path, *std::move(metadata), options);
  FSDP_RETURN_IF_ERROR(source->ReadState());
  return source;
}

}  // namespace fsdp
