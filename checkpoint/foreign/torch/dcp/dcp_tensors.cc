// SPDX-License-Identifier: Apache-2.0
//
// A chunk's archive is parsed (directory and pickle, two small reads) when a read first needs it, and its position is
// kept: a directory of a large run has millions of chunks, and a program that loads its shard needs few of them. Dtype
// and shape in the archive must equal those in .metadata.
//
// A read of row-major elements [begin, end) of a tensor is a few boxes (BoxesOf); each is intersected with the boxes of
// the chunks, and the nonempty parts are read with the chunk's strides in its file and the tensor's strides in memory
// (strided_read.h). Chunks cover a tensor exactly once, so every element is written once. They are sorted and cut
// dimension by dimension (CheckChunkCover), so those that a box overlaps are found by bisection: a stack of experts has
// tens of thousands.
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_tensors.h"

#include <malloc.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/lookalike_file.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxMetadataBytes = int64_t{1} << 30;
constexpr size_t kManyChunks = 10'000;

// The first of [begin, end) for which `is_after` is true; it is true for all after that one.
template <typename Predicate>
uint32_t FirstWhere(uint32_t begin, uint32_t end, const Predicate& is_after) {
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    is_after(middle) ? end = middle : begin = middle + 1;
  }
  return begin;
}

}  // namespace

absl::StatusOr<DcpMetadata> ReadDcpMetadata(const std::string& path) {
  const std::string metadata_path = JoinPath(path, kDcpMetadataName);
  FSDP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(PosixFileSystem(), metadata_path, kMaxMetadataBytes));
  absl::StatusOr<DcpMetadata> metadata = ParseDcpMetadata(bytes);
  if (!metadata.ok()) FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(metadata_path));
  if (!metadata.ok()) return Annotate(metadata.status(), metadata_path);
  // As with the values of a .pt (torch_archive.cc): otherwise small free pieces of the heap would stay in memory.
  if (metadata->chunks.size() > kManyChunks) malloc_trim(0);
  return metadata;
}

bool DcpTensors::HaveSameBytes(const DcpTensor& a, const DcpTensor& b) const {
  const DcpChunks& chunks = metadata_.chunks;
  const uint32_t count = a.end_chunk - a.first_chunk;
  if (a.dtype != b.dtype || a.shape != b.shape || b.end_chunk - b.first_chunk != count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t of_a = a.first_chunk + i;
    const uint32_t of_b = b.first_chunk + i;
    if (chunks.PlaceOf(of_a) != chunks.PlaceOf(of_b) || chunks.start(of_a) != chunks.start(of_b) ||
        chunks.count(of_a) != chunks.count(of_b)) {
      return false;
    }
  }
  return true;
}

// Sorted by the place of the first chunk, tensors with the same bytes follow each other.
absl::flat_hash_map<int, int> DcpTensors::SameBytes() const {
  std::vector<std::pair<DcpChunks::Place, int>> by_place;
  by_place.reserve(metadata_.tensors.size());
  for (int i = 0; i < size(); ++i) {
    const DcpTensor& tensor = metadata_.tensors[i];
    if (tensor.first_chunk != tensor.end_chunk) by_place.emplace_back(metadata_.chunks.PlaceOf(tensor.first_chunk), i);
  }
  std::sort(by_place.begin(), by_place.end());
  absl::flat_hash_map<int, int> same;
  size_t first = 0;
  for (size_t i = 1; i < by_place.size(); ++i) {
    if (by_place[i].first != by_place[first].first) {
      first = i;
    } else if (HaveSameBytes(metadata_.tensors[by_place[first].second], metadata_.tensors[by_place[i].second])) {
      same[by_place[first].second] = same[by_place[i].second] = by_place[first].second;
    }
  }
  return same;
}

absl::StatusOr<TorchNode> DcpTensors::ReadValue(const DcpEntry& entry) {
  const DcpSlice slice = metadata_.chunks.slices()[entry.slice()];
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
  absl::StatusOr<TorchArchive> archive = ReadArchive(*file, slice);
  if (!archive.ok()) return Annotate(archive.status(), absl::StrCat(Quote(entry.name()), " in ", Describe(slice)));
  return TakeValue(std::move(archive->tree), slice, metadata_, inner_);
}

absl::Status DcpTensors::Read(int index, const Interval& interval, std::byte* out) const {
  const DcpTensor& tensor = metadata_.tensors[index];
  for (const Box& box : BoxesOf(tensor.shape, interval)) {
    FSDP_RETURN_IF_ERROR(ReadBox({tensor, box, interval.begin, out}, 0, tensor.first_chunk, tensor.end_chunk));
  }
  return absl::OkStatus();
}

std::pair<uint32_t, uint32_t> DcpTensors::ChunksAt(const DcpTensor& tensor, absl::Span<const int64_t> at) const {
  const DcpChunks& chunks = metadata_.chunks;
  uint32_t begin = tensor.first_chunk;
  uint32_t end = tensor.end_chunk;
  for (size_t d = 0; d < at.size(); ++d) {
    begin = FirstWhere(begin, end, [&](uint32_t i) { return chunks.start(i)[d] + chunks.count(i)[d] > at[d]; });
    end = FirstWhere(begin, end, [&](uint32_t i) { return chunks.start(i)[d] > at[d]; });
  }
  return {begin, end};
}

absl::StatusOr<std::vector<TensorPlace>> DcpTensors::Places(int index, absl::Span<const int64_t> at) const {
  const DcpTensor& tensor = metadata_.tensors[index];
  std::vector<TensorPlace> places;
  const auto [begin, end] = ChunksAt(tensor, at);
  for (uint32_t i = begin; i < end; ++i) {
    FSDP_ASSIGN_OR_RETURN(const DcpChunkPlace place, PlaceOf(tensor, i));
    if (!place.is_contiguous)
      return absl::UnimplementedError("a chunk of it is a view whose elements are not contiguous");
    DcpChunk chunk = metadata_.chunks[i];
    for (size_t d = 0; d < at.size(); ++d) {
      if (chunk.box.count[d] != 1) return absl::UnimplementedError("a chunk of it has elements of other tensors");
    }
    chunk.box.start.erase(chunk.box.start.begin(), chunk.box.start.begin() + std::ssize(at));
    chunk.box.count.erase(chunk.box.count.begin(), chunk.box.count.begin() + std::ssize(at));
    places.push_back({JoinPath(path_, chunk.slice.file), place.offset, std::move(chunk.box)});
  }
  return places;
}

DcpTensors::Storage DcpTensors::StorageOf(int index, absl::Span<const int64_t> at) const {
  const DcpTensor& tensor = metadata_.tensors[index];
  Storage storage;
  const auto [begin, end] = ChunksAt(tensor, at);
  for (uint32_t i = begin; i < end; ++i) {
    int64_t numel = 1;
    for (const int64_t count : metadata_.chunks.count(i)) numel *= count;
    const int64_t whole = numel * SizeOf(tensor.dtype);
    const absl::StatusOr<DcpChunkPlace> place = PlaceOf(tensor, i);
    storage.nbytes += place.ok() ? std::min(whole, place->touched_bytes) : whole;
    storage.distinct_numel += place.ok() ? DistinctOf(i, *place).shape.numel() : numel;
  }
  return storage;
}

absl::Status DcpTensors::ReadDistinct(int index, const Interval& interval, std::byte* out) const {
  const DcpTensor& tensor = metadata_.tensors[index];
  const int64_t size = SizeOf(tensor.dtype);
  int64_t begin = 0;  // of the chunk, in distinct elements of the tensor
  for (uint32_t i = tensor.first_chunk; i < tensor.end_chunk && begin < interval.end; ++i) {
    FSDP_ASSIGN_OR_RETURN(const DcpChunkPlace place, PlaceOf(tensor, i));
    const DistinctElements distinct = DistinctOf(i, place);
    const Interval part = Intersect(interval, {begin, begin + distinct.shape.numel()});
    if (!part.empty()) {
      const DcpSlice slice = metadata_.chunks.slice(i);
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
      const absl::Status status =
          ReadStridedInterval(*file, {place.offset, size, distinct.shape, distinct.strides},
                              {part.begin - begin, part.end - begin}, out + (part.begin - interval.begin) * size);
      if (!status.ok()) return Annotate(status, Describe(slice));
    }
    begin += distinct.shape.numel();
  }
  return absl::OkStatus();
}

std::vector<std::string> DcpTensors::files() const {
  std::vector<std::string> paths = {JoinPath(path_, kDcpMetadataName)};
  for (const std::string& name : metadata_.chunks.slices().files()) paths.push_back(JoinPath(path_, name));
  return paths;
}

// The length of the slice comes from .metadata: a file that is shorter is reported here, with both numbers.
absl::StatusOr<TorchArchive> DcpTensors::ReadArchive(const File& file, const DcpSlice& slice) const {
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file.Size());
  if (slice.end() > nbytes) {
    FSDP_RETURN_IF_ERROR(CheckIsNoLookalike(file));
    return absl::DataLossError(absl::StrCat("bytes ", slice.offset, " to ", slice.end(),
                                            " are wanted, but the file has ", nbytes, ": it is truncated"));
  }
  return ReadTorchArchive({&file, slice.offset, slice.nbytes}, options_);
}

std::string DcpTensors::Describe(const DcpSlice& slice) const {
  return absl::StrCat(JoinPath(path_, slice.file), ", bytes ", slice.offset, " to ", slice.end());
}

// In dimension d the chunks form groups of one range, which follow each other without a gap.
absl::Status DcpTensors::ReadBox(const BoxRead& read, size_t d, uint32_t begin, uint32_t end) const {
  const DcpChunks& chunks = metadata_.chunks;
  if (d == read.box.start.size()) {
    for (; begin < end; ++begin) FSDP_RETURN_IF_ERROR(ReadPart(read, begin));
    return absl::OkStatus();
  }
  const int64_t box_begin = read.box.start[d];
  const int64_t box_end = box_begin + read.box.count[d];
  begin = FirstWhere(begin, end, [&](uint32_t i) { return chunks.start(i)[d] + chunks.count(i)[d] > box_begin; });
  while (begin < end && chunks.start(begin)[d] < box_end) {
    const int64_t start = chunks.start(begin)[d];
    const uint32_t last = FirstWhere(begin, end, [&](uint32_t i) { return chunks.start(i)[d] > start; });
    FSDP_RETURN_IF_ERROR(ReadBox(read, d + 1, begin, last));
    begin = last;
  }
  return absl::OkStatus();
}

absl::Status DcpTensors::ReadPart(const BoxRead& read, uint32_t index) const {
  const absl::Span<const int64_t> start = metadata_.chunks.start(index);
  const absl::Span<const int64_t> count = metadata_.chunks.count(index);
  std::vector<Interval> part;
  for (size_t d = 0; d < read.box.start.size(); ++d) {
    part.push_back(
        Intersect({read.box.start[d], read.box.start[d] + read.box.count[d]}, {start[d], start[d] + count[d]}));
    if (part.back().empty()) return absl::OkStatus();
  }
  FSDP_ASSIGN_OR_RETURN(const DcpChunkPlace place, PlaceOf(read.tensor, index));
  const DcpSlice slice = metadata_.chunks.slice(index);
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, files_.Open(slice.file));
  const std::vector<int64_t> row_major = RowMajorStrides(read.tensor.shape);
  const int64_t size = SizeOf(read.tensor.dtype);
  StridedBox strided = {place.offset, size, {}};
  // May be negative only until the offsets of the part are added: the part begins at or after element `first`.
  int64_t to = -read.first;
  for (size_t d = 0; d < part.size(); ++d) {
    strided.offset += (part[d].begin - start[d]) * place.strides[d] * size;
    to += part[d].begin * row_major[d];
    strided.dims.push_back({part[d].size(), place.strides[d], row_major[d]});
  }
  const absl::Status status = ReadStrided(*file, std::move(strided), read.out + to * size);
  return status.ok() ? status : Annotate(status, Describe(slice));
}

// The position of chunk `chunk`, one of `tensor`; its archive is read the first time, without the lock. Two threads
// may both read it, with the same result.
absl::StatusOr<DcpChunkPlace> DcpTensors::PlaceOf(const DcpTensor& tensor, uint32_t chunk) const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::optional<DcpChunkPlace> place = places_.Find(chunk, tensor.dtype)) return *std::move(place);
  }
  const DcpSlice slice = metadata_.chunks.slice(chunk);
  absl::StatusOr<DcpChunkPlace> place = ReadPlace(tensor, chunk, slice);
  if (!place.ok()) return Annotate(place.status(), Describe(slice));
  const std::lock_guard<std::mutex> lock(mutex_);
  places_.Add(chunk, *place, tensor.dtype);
  return place;
}

absl::StatusOr<DcpChunkPlace> DcpTensors::ReadPlace(const DcpTensor& tensor, uint32_t chunk,
                                                    const DcpSlice& slice) const {
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
  return DcpChunkPlace{storage + stored.offset * SizeOf(stored.dtype),
                       {stored.strides.begin(), stored.strides.end()},
                       stored.touched_bytes(),
                       stored.is_contiguous()};
}

DistinctElements DcpTensors::DistinctOf(uint32_t chunk, const DcpChunkPlace& place) const {
  return DistinctElements::Of(metadata_.chunks.count(chunk), place.strides);
}

}  // namespace fsdp
