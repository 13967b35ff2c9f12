// SPDX-License-Identifier: Apache-2.0
//
// Opening reads .metadata and the archives of plain values. A chunk's archive is parsed (directory and pickle, two
// small reads) when a read first needs it, and its position is kept: a directory of a large run has millions of chunks,
// and a program that loads its shard needs few of them. Dtype and shape in the archive must equal those in .metadata.
//
// A read of row-major elements [begin, end) of a tensor is a few boxes (BoxesOf); each is intersected with the boxes of
// the chunks, and the nonempty parts are read with the chunk's strides in its file and the tensor's strides in memory
// (strided_read.h). Chunks cover a tensor exactly once, so every element is written once.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_source.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/dcp/chunk_places.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_value.h"
#include "fsdp/checkpoint/foreign/torch/pt/file_pool.h"
#include "fsdp/checkpoint/foreign/torch/pt/torch_file.h"
#include "fsdp/checkpoint/foreign/torch/state/distinct_elements.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/source/bool_bytes.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/source/tensor_views.h"
#include "fsdp/checkpoint/source/weight_files.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxMetadataBytes = int64_t{1} << 30;
constexpr size_t kManyChunks = 10'000;

absl::Status In(const absl::Status& status, const std::string& place) { return Annotate(status, place); }

class DcpSource final : public TensorSource, public TensorViews, public CoveringChecksums {
 public:
  DcpSource(std::string path, DcpMetadata metadata, const TensorSourceOptions& options)
      : path_(std::move(path)),
        metadata_(std::move(metadata)),
        options_(options),
        files_(path_, options),
        places_(metadata_.chunks) {}

  // Builds the tree from the entries of .metadata and finds the state dict in it. Values are read from their archives,
  // because they decide what the state dict is (param_groups); tensors are not read.
  absl::Status ReadState() {
    // .metadata does not record the number of ranks, for which flat parameters are padded.
    world_size_ = DcpWorldSize(metadata_.chunks.slices().files());
    TorchNode root;
    for (DcpEntry& entry : metadata_.entries) {
      absl::StatusOr<TorchNode> leaf = entry.is_tensor()
                                           ? TorchNode::Tensor(static_cast<int>(entry.tensor()))
                                           : ReadValue(entry.name(), metadata_.chunks.slices()[entry.slice()]);
      FSDP_RETURN_IF_ERROR(leaf.status());
      FSDP_RETURN_IF_ERROR(Insert(entry, *std::move(leaf), root));
    }
    metadata_.entries = {};  // the tree has their names now
    const TorchLeafTypes types(static_cast<int64_t>(metadata_.tensors.size()), [this](int i) {
      return TorchLeafType{metadata_.tensors[i].dtype, metadata_.tensors[i].shape};
    });
    const TorchTensorReader read = [this](int tensor, const Interval& interval, std::byte* out) {
      return ReadTensor(tensor, interval, out);
    };
    absl::StatusOr<TorchState> state = StateOfTree(
        std::move(root), types,
        {.read = read,
         .flat = {.layout = options_.flat_layout ? &*options_.flat_layout : nullptr, .world_size = world_size_},
         .model_only = options_.model_only,
         .skip_objects = options_.model_only || options_.skip_links,
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

  std::vector<std::string> files() const override {
    std::vector<std::string> paths = {JoinPath(path_, kDcpMetadataName)};
    for (const std::string& name : metadata_.chunks.slices().files()) paths.push_back(JoinPath(path_, name));
    return paths;
  }

  std::vector<std::string> left_out() const override {
    std::vector<std::string> left_out = WeightsBeside(path_, files());
    left_out.insert(left_out.begin(), state_.left_out.begin(), state_.left_out.end());
    return left_out;
  }

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

  // One place for each chunk, if every chunk is contiguous: this reads all their archives.
  absl::StatusOr<std::vector<TensorPlace>> Places(const StateKey& key) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr) return absl::UnimplementedError("it is a number in a pickle, not a tensor");
    const DcpTensor& tensor = metadata_.tensors[part->tensor];
    if (tensor.shape != state_.contents.FindTensor(key)->shape) {
      return absl::UnimplementedError("it is a part of a flat parameter of FSDP1");
    }
    std::vector<TensorPlace> places;
    for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
      FSDP_ASSIGN_OR_RETURN(const ChunkPlace place, PlaceOf(tensor, i));
      if (!place.is_contiguous)
        return absl::UnimplementedError("a chunk of it is a view whose elements are not contiguous");
      DcpChunk chunk = metadata_.chunks[i];
      places.push_back({JoinPath(path_, chunk.slice.file), place.offset, std::move(chunk.box)});
    }
    return places;
  }

  // A chunk is a separate archive, so it is the chunk that may expand. Reads all archives; a chunk that cannot be read
  // counts as .metadata describes it, and reading it later reports the error.
  std::optional<TensorStorage> Storage(const StateKey& key) const override {
    const absl::StatusOr<const TorchLeaf*> leaf = state_.FindLeaf(key);
    if (!leaf.ok() || (*leaf)->tensor_part() == nullptr) return std::nullopt;
    const TorchTensorPart& part = *(*leaf)->tensor_part();
    const DcpTensor& tensor = metadata_.tensors[part.tensor];
    const bool is_whole = tensor.shape == state_.contents.FindTensor(key)->shape;
    int64_t nbytes = 0;
    int64_t distinct = 0;
    for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
      int64_t numel = 1;
      for (const int64_t count : metadata_.chunks.count(i)) numel *= count;
      const int64_t whole = numel * SizeOf(tensor.dtype);
      const absl::StatusOr<ChunkPlace> place = PlaceOf(tensor, i);
      nbytes += place.ok() ? std::min(whole, place->touched_bytes) : whole;
      distinct += place.ok() ? DistinctOf(i, *place).shape.numel() : numel;
    }
    return TensorStorage{.id = part.tensor,
                         .nbytes = nbytes,
                         .view = part.offset,
                         .touched_bytes = nbytes,
                         .distinct_numel = is_whole ? distinct : 0};
  }

  // Reads the distinct elements of chunk after chunk, in their order.
  absl::Status ReadDistinct(const StateKey& key, const Interval& interval, void* out) const override {
    FSDP_ASSIGN_OR_RETURN(const TorchLeaf* leaf, state_.FindLeaf(key));
    const TorchTensorPart* const part = leaf->tensor_part();
    if (part == nullptr || metadata_.tensors[part->tensor].shape != state_.contents.FindTensor(key)->shape) {
      return absl::UnimplementedError("it is not a tensor of .metadata");
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
      FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(file));
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
    return TakeValue(std::move(archive->tree), slice, metadata_, inner_);
  }

  // Puts `leaf` into the nested dicts and lists under `root` at the path of `entry`, and creates the branches on the
  // way. A path that another entry contradicts (a leaf instead of a branch, a list index out of order) is damage.
  static absl::Status Insert(const DcpEntry& entry, TorchNode leaf, TorchNode& root) {
    const auto broken = [&] {
      return absl::DataLossError(absl::StrCat(
          Quote(entry.name()), ": its path in planner_data is too deep, or contradicts the path of another entry"));
    };
    const DcpEntry::Path path = entry.path();
    if (path.size() > static_cast<size_t>(kMaxTorchDepth)) return broken();
    TorchNode* node = &root;
    for (size_t i = 0; i < path.size(); ++i) {
      const DcpEntry::PathElement& element = path[i];
      if (!node->is_branch() || (!node->members().empty() && node->is_list != element.is_index)) return broken();
      node->is_list = element.is_index;
      const bool is_last = i + 1 == path.size();
      TorchNode* next = is_last ? nullptr : node->Find(element.name);
      if (next == nullptr) {
        // Indices must come in order, because a TorchNode's list numbers its members by position.
        if (element.is_index && element.name != absl::StrCat(node->members().size())) return broken();
        next = node->Add(element.name, is_last ? std::move(leaf) : TorchNode());
        if (next == nullptr) return broken();
      }
      node = next;
    }
    return absl::OkStatus();
  }

  // Compares every chunk with every box. A tensor has as many chunks as ranks hold it, and an interval has few boxes.
  absl::Status ReadTensor(int index, const Interval& interval, std::byte* out) const {
    const DcpTensor& tensor = metadata_.tensors[index];
    for (const Box& box : BoxesOf(tensor.shape, interval)) {
      for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk; ++i) {
        FSDP_RETURN_IF_ERROR(ReadPart(tensor, i, box, interval.begin, out));
      }
    }
    return absl::OkStatus();
  }

  // The position of chunk `chunk`, one of `tensor`; its archive is read the first time, without the lock. Two threads
  // may both read it, with the same result.
  absl::StatusOr<ChunkPlace> PlaceOf(const DcpTensor& tensor, uint32_t chunk) const {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::optional<ChunkPlace> place = places_.Find(chunk, tensor.dtype)) return *std::move(place);
    }
    const DcpSlice slice = metadata_.chunks.slice(chunk);
    absl::StatusOr<ChunkPlace> place = ReadPlace(tensor, chunk, slice);
    if (!place.ok()) return In(place.status(), Describe(slice));
    const std::lock_guard<std::mutex> lock(mutex_);
    places_.Add(chunk, *place, tensor.dtype);
    return place;
  }

  absl::StatusOr<ChunkPlace> ReadPlace(const DcpTensor& tensor, uint32_t chunk, const DcpSlice& slice) const {
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
    FSDP_ASSIGN_OR_RETURN(const TorchArchive archive, ReadArchive(*file, slice));
    // A chunk's archive holds its tensor directly, without a dict around it, unless it is the archive of a value.
    const auto inner = inner_.find(chunk);
    const bool is_inner = inner != inner_.end() && inner->second < archive.tree.tensors.size();
    if (!is_inner && archive.tree.root.kind() != TorchNode::Kind::kTensor) {
      return absl::DataLossError("it holds no tensor");
    }
    const uint32_t number = is_inner ? inner->second : 0;
    const TorchTensor stored = archive.tree.tensors[number];
    const absl::Span<const int64_t> wanted = metadata_.chunks.count(chunk);
    if (stored.dtype != tensor.dtype) {
      return absl::DataLossError(absl::StrCat("its dtype is ", std::string(DTypeName(stored.dtype)),
                                              ", but .metadata has ", std::string(DTypeName(tensor.dtype))));
    }
    if (stored.shape.dims() != wanted) {
      return absl::DataLossError(absl::StrCat("its shape is ", stored.shape.ToString(), ", but .metadata has ",
                                              Shape::Create(wanted)->ToString()));
    }
    // Before the first read of payload: the CRC must see all of the chunk's bytes.
    files_.Expect(slice.file, archive);
    const int64_t storage = archive.tree.tensors.storage_offset(archive.tree.tensors.storage_of(number));
    return ChunkPlace{storage + stored.offset * SizeOf(stored.dtype),
                      {stored.strides.begin(), stored.strides.end()},
                      stored.touched_bytes(),
                      stored.is_contiguous()};
  }

  DistinctElements DistinctOf(uint32_t chunk, const ChunkPlace& place) const {
    return DistinctElements::Of(metadata_.chunks.count(chunk), place.strides);
  }

  absl::Status ReadDistinctOf(int index, const Interval& interval, std::byte* out) const {
    const DcpTensor& tensor = metadata_.tensors[index];
    const int64_t size = SizeOf(tensor.dtype);
    int64_t begin = 0;  // of the chunk, in distinct elements of the tensor
    for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk && begin < interval.end; ++i) {
      FSDP_ASSIGN_OR_RETURN(const ChunkPlace place, PlaceOf(tensor, i));
      const DistinctElements distinct = DistinctOf(i, place);
      const Interval part = Intersect(interval, {begin, begin + distinct.shape.numel()});
      if (!part.empty()) {
        const DcpSlice slice = metadata_.chunks.slice(i);
        FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
        const absl::Status status =
            ReadStridedInterval(*file, {place.offset, size, distinct.shape, distinct.strides},
                                {part.begin - begin, part.end - begin}, out + (part.begin - interval.begin) * size);
        if (!status.ok()) return In(status, Describe(slice));
      }
      begin += distinct.shape.numel();
    }
    return absl::OkStatus();
  }

  // Reads the part of `box` that chunk `index` of `tensor` holds. `out` points to element `first` of the tensor,
  // row-major.
  absl::Status ReadPart(const DcpTensor& tensor, uint32_t index, const Box& box, int64_t first, std::byte* out) const {
    const absl::Span<const int64_t> start = metadata_.chunks.start(index);
    const absl::Span<const int64_t> count = metadata_.chunks.count(index);
    std::vector<Interval> part;
    for (size_t d = 0; d < box.start.size(); ++d) {
      part.push_back(Intersect({box.start[d], box.start[d] + box.count[d]}, {start[d], start[d] + count[d]}));
      if (part.back().empty()) return absl::OkStatus();
    }
    FSDP_ASSIGN_OR_RETURN(const ChunkPlace place, PlaceOf(tensor, index));
    const DcpSlice slice = metadata_.chunks.slice(index);
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
    const std::vector<int64_t> row_major = RowMajorStrides(tensor.shape);
    const int64_t size = SizeOf(tensor.dtype);
    StridedBox strided = {place.offset, size, {}};
    // May be negative only until the offsets of the part are added: the part begins at or after element `first`.
    int64_t to = -first;
    for (size_t d = 0; d < part.size(); ++d) {
      strided.offset += (part[d].begin - start[d]) * place.strides[d] * size;
      to += part[d].begin * row_major[d];
      strided.dims.push_back({part[d].size(), place.strides[d], row_major[d]});
    }
    const absl::Status status = ReadStrided(*file, std::move(strided), out + to * size);
    return status.ok() ? status : In(status, Describe(slice));
  }

  const std::string path_;
  DcpMetadata metadata_;  // constant once the source is open
  InnerTensors inner_;    // the same
  const TensorSourceOptions options_;
  mutable FilePool files_;
  TorchState state_;
  int world_size_ = 1;
  const std::map<std::string, std::string> string_metadata_;
  mutable std::mutex mutex_;
  mutable ChunkPlaces places_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<bool> IsDcpDirectory(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const auto type, TypeOfTarget(JoinPath(directory, kDcpMetadataName)));
  return type != std::filesystem::file_type::not_found;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenDcpSource(const std::string& path,
                                                            const TensorSourceOptions& options) {
  const std::string metadata_path = JoinPath(path, kDcpMetadataName);
  absl::StatusOr<DcpMetadata> metadata;
  {
    FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(PosixFileSystem(), metadata_path, kMaxMetadataBytes));
    metadata = ParseDcpMetadata(bytes);
    if (!metadata.ok()) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(metadata_path));
    if (!metadata.ok()) return In(metadata.status(), metadata_path);
    // As with the values of a .pt (torch_archive.cc): otherwise small free pieces of the heap would stay in memory.
    if (metadata->chunks.size() > kManyChunks) malloc_trim(0);
  }
  auto source = std::make_unique<DcpSource>(path, *std::move(metadata), options);
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
