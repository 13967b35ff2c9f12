// SPDX-License-Identifier: Apache-2.0
//
// An interval of row-major elements is a few boxes; each is intersected with the chunks that it touches, and a chunk's
// part is copied with the chunk's strides on one side and the array's on the other (strided_read.h). Chunks do not
// overlap, so every element is written once. Big-endian elements are swapped at the end.
#include "fsdp/checkpoint/foreign/orbax/zarr_array.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/zstd_frame.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// The chunks that a row of elements touches are kept decoded if they have at most this many bytes together.
constexpr int64_t kMaxBandBytes = int64_t{64} << 20;

// The largest chunk that is decoded as a whole, if it cannot be streamed.
constexpr int64_t kMaxDecodedBytes = int64_t{1} << 30;

constexpr int64_t kIndexEntryBytes = 16;  // of a shard: offset and length

// The index of a shard in the cache has a number that no chunk has.
int64_t IndexNumber(int64_t shard) { return -1 - shard; }

uint64_t U64(const std::byte* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// The elements of a chunk that is not stored.
// Writes `fill` to each element of a box with these counts and strides.
void Fill(const std::vector<StridedDim>& dims, size_t d, const std::string& fill, std::byte* to) {
  if (d == dims.size()) {
    std::memcpy(to, fill.data(), fill.size());
    return;
  }
  const auto size = static_cast<int64_t>(fill.size());
  const bool is_run = d + 1 == dims.size() && dims[d].to_stride == 1;
  if (is_run && fill.find_first_not_of('\0') == fill.npos) {
    std::memset(to, 0, dims[d].count * size);
    return;
  }
  for (int64_t i = 0; i < dims[d].count; ++i) Fill(dims, d + 1, fill, to + i * dims[d].to_stride * size);
}

// The row-major place of `index` in `grid`.
int64_t PlaceIn(const std::vector<int64_t>& grid, const std::vector<int64_t>& index) {
  int64_t place = 0;
  for (size_t d = 0; d < grid.size(); ++d) place = place * grid[d] + index[d];
  return place;
}

int64_t CountOf(const std::vector<int64_t>& grid) {
  int64_t count = 1;
  for (const int64_t n : grid) count *= n;
  return count;
}

std::string TextOf(const std::vector<int64_t>& index) { return Shape::Create(index)->ToString(); }

}  // namespace

absl::StatusOr<ZarrArray> ZarrArray::Open(const KeyValues& values, const std::string& name, int64_t number,
                                          ChunkMemory& memory) {
  ZarrArray array(values, name, number, memory);
  FSDP_ASSIGN_OR_RETURN(std::optional<ValuePlace> zarray, values.Find(name + "/.zarray"));
  FSDP_ASSIGN_OR_RETURN(std::optional<ValuePlace> zarr_json, values.Find(name + "/zarr.json"));
  if (zarray && zarr_json) return absl::DataLossError(absl::StrCat(Printable(name), ": both .zarray and zarr.json"));
  if (!zarray && !zarr_json)
    return absl::NotFoundError(absl::StrCat(Printable(name), ": neither .zarray nor zarr.json"));
  const ValuePlace& place = zarray ? *zarray : *zarr_json;
  std::string key = absl::StrCat(name, zarray ? "/.zarray" : "/zarr.json");
  const bool is_file = place.file.empty() || place.file == key;  // else the key is in a file of a database
  key = absl::StrCat(Printable(key), is_file ? "" : absl::StrCat(" in ", KeyValues::Describe(place)));
  const absl::StatusOr<std::string> text = values.ReadWhole(place, kMaxZarrMetadataBytes);
  if (!text.ok()) return Annotate(text.status(), key);
  absl::StatusOr<ZarrMetadata> metadata = zarray ? ParseZarray(*text) : ParseZarrJson(*text);
  if (!metadata.ok()) return Annotate(metadata.status(), key);
  array.metadata_ = *std::move(metadata);
  array.grid_ = GridOf(array.metadata_.shape, array.metadata_.chunk);
  // A read of rows touches each chunk of a band once. If the decoded band fits into the cache, chunks are decoded
  // whole; if not, and if the order of elements is the order of reads, they are decoded as streams.
  const bool is_c_order = array.metadata_.strides == RowMajorStrides(array.metadata_.chunk);
  int64_t band_chunks = 1;
  for (size_t d = 1; d < array.grid_.size(); ++d) band_chunks *= std::max<int64_t>(array.grid_[d], 1);
  const bool is_large = array.chunk_bytes() > kMaxBandBytes / band_chunks;
  array.is_streamed_ = is_large && is_c_order && CanStream(array.metadata_.codec);
  return array;
}

// By listing the keys, which is cheaper than looking for each chunk: a fresh optimizer's zeros are often not stored.
absl::Status ZarrArray::CountMissing() {
  int64_t found = 0;
  std::vector<std::string> shards;
  FSDP_RETURN_IF_ERROR(values_->VisitKeys(name_, [&](std::string_view rest) {
    if (!metadata_.IndexOfKey(rest)) return;
    ++found;
    if (metadata_.shard) shards.emplace_back(rest);
  }));
  missing_ = CountOf(GridOf(metadata_.shape, metadata_.stored())) - found;
  const int64_t numel = metadata_.shape.numel();
  const int64_t part = metadata_.stored().numel();
  stored_numel_ = found > numel / part ? numel : found * part;
  if (!metadata_.shard) return absl::OkStatus();
  // A shard may have few of its chunks; no chunk has more elements than its bytes can make.
  int64_t in_shards = 0;
  for (const std::string& rest : shards) {
    FSDP_ASSIGN_OR_RETURN(const std::optional<ValuePlace> place, values_->Find(absl::StrCat(name_, "/", rest)));
    if (place) in_shards += std::min(part, std::min(place->nbytes, part) * kMaxZstdRatio);
  }
  stored_numel_ = std::min(stored_numel_, in_shards);
  return absl::OkStatus();
}

int64_t ZarrArray::StoredBytes() const { return stored_numel_ * element_bytes(); }

int64_t ZarrArray::BandNumel() const {
  if (metadata_.shape.rank() == 0) return 1;
  return std::min(metadata_.chunk.dim(0), std::max<int64_t>(metadata_.shape.dim(0), 1)) *
         std::max<int64_t>(metadata_.shape.row_numel(), 1);
}

int64_t ZarrArray::NumberOf(const std::vector<int64_t>& index) const { return PlaceIn(grid_, index); }

absl::StatusOr<std::optional<ValuePlace>> ZarrArray::Find(const std::vector<int64_t>& index) const {
  if (metadata_.shard) return FindInShard(index);
  FSDP_ASSIGN_OR_RETURN(std::optional<ValuePlace> place,
                        values_->Find(absl::StrCat(name_, "/", metadata_.KeyOf(index))));
  return place;
}

// A shard is a value with many chunks and an index of (offset, length) pairs at its beginning or end. The decoded index
// is kept in the cache of chunks, since the next read is most likely of the same shard.
absl::StatusOr<std::optional<ValuePlace>> ZarrArray::FindInShard(const std::vector<int64_t>& index) const {
  std::vector<int64_t> shard;
  std::vector<int64_t> inside;
  const std::vector<int64_t> chunks = GridOf(*metadata_.shard, metadata_.chunk);
  for (size_t d = 0; d < index.size(); ++d) {
    shard.push_back(index[d] / chunks[d]);
    inside.push_back(index[d] % chunks[d]);
  }
  const std::string key = absl::StrCat(name_, "/", metadata_.KeyOf(shard));
  FSDP_ASSIGN_OR_RETURN(const std::optional<ValuePlace> whole, values_->Find(key));
  if (!whole) return std::nullopt;
  const int64_t entries_bytes = CountOf(chunks) * kIndexEntryBytes;
  const int64_t index_bytes = LeastStoredBytes(metadata_.index_codec, entries_bytes);
  if (index_bytes > whole->nbytes) {
    return absl::DataLossError(
        absl::StrCat("its shard has ", whole->nbytes, " bytes, and only its index has ", index_bytes));
  }
  const ChunkNumber number = {number_, IndexNumber(PlaceIn(GridOf(metadata_.shape, *metadata_.shard), shard))};
  FSDP_ASSIGN_OR_RETURN(
      const std::shared_ptr<const ChunkCache::Bytes> entries,
      memory_->cache.Get(number, [&]() -> absl::StatusOr<ChunkCache::Bytes> {
        std::string stored(index_bytes, '\0');
        FSDP_RETURN_IF_ERROR(values_->Read(*whole, metadata_.is_index_first ? 0 : whole->nbytes - index_bytes,
                                           absl::MakeSpan(reinterpret_cast<std::byte*>(stored.data()), stored.size())));
        ChunkCache::Bytes decoded(entries_bytes);
        const absl::Status status = DecodeChunk(metadata_.index_codec, stored, absl::MakeSpan(decoded));
        if (!status.ok()) return Annotate(status, "the index of its shard");
        return decoded;
      }));
  const std::byte* const entry = entries->data() + PlaceIn(chunks, inside) * kIndexEntryBytes;
  const uint64_t offset = U64(entry);
  const uint64_t nbytes = U64(entry + 8);
  // The mark for a chunk that is not stored.
  if (offset == UINT64_MAX && nbytes == UINT64_MAX) return std::nullopt;
  const auto size = static_cast<uint64_t>(whole->nbytes);
  if (offset > size || nbytes > size - offset) {
    return absl::DataLossError(absl::StrCat("it is at byte ", offset, " of its shard, which has ", size));
  }
  ValuePlace place = *whole;
  place.offset += static_cast<int64_t>(offset);
  place.nbytes = static_cast<int64_t>(nbytes);
  if (place.file.empty()) place.bytes = place.bytes.substr(offset, nbytes);
  return place;
}

absl::StatusOr<ChunkCache::Bytes> ZarrArray::Decode(const ValuePlace& place) const {
  if (chunk_bytes() > kMaxDecodedBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("it has ", chunk_bytes(),
                                                     " bytes, and with this compression only ", "chunks of at most ",
                                                     kMaxDecodedBytes, " are read"));
  }
  FSDP_ASSIGN_OR_RETURN(const std::string stored, values_->ReadWhole(place, place.nbytes));
  ChunkCache::Bytes elements(chunk_bytes());
  FSDP_RETURN_IF_ERROR(DecodeChunk(metadata_.codec, stored, absl::MakeSpan(elements)));
  return elements;
}

// Three ways to the elements: straight from the file, by a stream that continues where the last read ended, or from the
// cache of decoded chunks.
absl::Status ZarrArray::ReadChunk(const ChunkNumber& number, const ValuePlace& place, StridedBox part,
                                  std::byte* out) const {
  if (metadata_.codec.is_plain()) {
    return ReadStrided([&](int64_t offset, absl::Span<std::byte> bytes) { return values_->Read(place, offset, bytes); },
                       std::move(part), out);
  }
  if (is_streamed_) {
    return ReadStrided(
        [&](int64_t offset, absl::Span<std::byte> bytes) {
          return memory_->streams.Read(number, metadata_.codec.compressor, *values_, place, chunk_bytes(), offset,
                                       bytes);
        },
        std::move(part), out);
  }
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const ChunkCache::Bytes> elements,
                        memory_->cache.Get(number, [&] { return Decode(place); }));
  return ReadStrided(
      [&](int64_t offset, absl::Span<std::byte> bytes) {
        std::memcpy(bytes.data(), elements->data() + offset, bytes.size());
        return absl::OkStatus();
      },
      std::move(part), out);
}

// Reads the elements that the box has in common with chunk `index`. `first` is the element of the array that belongs to
// the beginning of `out`; the offsets within chunk and array are sums over the dimensions.
absl::Status ZarrArray::ReadPart(const std::vector<int64_t>& index, const Box& box, int64_t first,
                                 std::byte* out) const {
  const std::vector<int64_t> row_major = RowMajorStrides(metadata_.shape);
  const int64_t size = element_bytes();
  StridedBox part = {0, size, {}};
  int64_t to = -first;  // negative only until the offsets of the part are added
  for (size_t d = 0; d < index.size(); ++d) {
    const int64_t chunk_begin = index[d] * metadata_.chunk.dim(static_cast<int>(d));
    const Interval held = Intersect({box.start[d], box.start[d] + box.count[d]},
                                    {chunk_begin, chunk_begin + metadata_.chunk.dim(static_cast<int>(d))});
    part.offset += (held.begin - chunk_begin) * metadata_.strides[d] * size;
    to += held.begin * row_major[d];
    part.dims.push_back({held.size(), metadata_.strides[d], row_major[d]});
  }
  FSDP_ASSIGN_OR_RETURN(const std::optional<ValuePlace> place, Find(index));
  if (!place) {
    if (is_complete_)
      return absl::DataLossError("it is not stored, but the writer of this checkpoint stores every chunk");
    Fill(part.dims, 0, metadata_.fill, out + to * size);
    return absl::OkStatus();
  }
  // Sizes that cannot be are refused before anything is allocated.
  const int64_t nbytes = chunk_bytes();
  if (place->nbytes < LeastStoredBytes(metadata_.codec, nbytes) ||
      place->nbytes > MostStoredBytes(metadata_.codec, nbytes)) {
    return absl::DataLossError(absl::StrCat("it is stored in ", place->nbytes, " bytes (", KeyValues::Describe(*place),
                                            "), which cannot be ", nbytes, " bytes of elements"));
  }
  const ChunkNumber number = {number_, NumberOf(index)};
  const absl::Status status = ReadChunk(number, *place, std::move(part), out + to * size);
  return status.ok() ? status : Annotate(status, KeyValues::Describe(*place));
}

// An interval of row-major elements is a few boxes (a part of the first row, whole rows, a part of the last); each box
// touches a grid of chunks.
absl::Status ZarrArray::Read(const Interval& interval, std::byte* out) const {
  for (const Box& box : BoxesOf(metadata_.shape, interval)) {
    const size_t rank = box.start.size();
    std::vector<int64_t> first(rank);
    std::vector<int64_t> last(rank);
    for (size_t d = 0; d < rank; ++d) {
      first[d] = box.start[d] / metadata_.chunk.dim(static_cast<int>(d));
      last[d] = (box.start[d] + box.count[d] - 1) / metadata_.chunk.dim(static_cast<int>(d));
    }
    std::vector<int64_t> index = first;
    while (true) {
      const absl::Status status = ReadPart(index, box, interval.begin, out);
      if (!status.ok()) return Annotate(status, absl::StrCat("chunk ", TextOf(index)));
      // The next one, row-major.
      size_t d = rank;
      while (d > 0 && index[d - 1] == last[d - 1]) {
        index[d - 1] = first[d - 1];
        --d;
      }
      if (d == 0) break;
      ++index[d - 1];
    }
  }
  // The parts of a complex number are swapped one by one.
  if (metadata_.is_swapped) {
    const int64_t part = SizeOf(PartOf(*metadata_.dtype));
    std::byte* const end = out + interval.size() * element_bytes();
    for (std::byte* at = out; at != end; at += part) std::reverse(at, at + part);
  }
  return metadata_.narrow ? WidenIntegers(*metadata_.narrow, interval, out) : absl::OkStatus();
}

absl::StatusOr<std::vector<TensorPlace>> ZarrArray::Places(const std::string& directory) const {
  if (!metadata_.codec.is_plain()) return absl::UnimplementedError("its chunks are compressed");
  if (metadata_.is_swapped) return absl::UnimplementedError("its elements are big-endian");
  if (metadata_.narrow) return absl::UnimplementedError("its elements are stored in another dtype");
  if (metadata_.strides != RowMajorStrides(metadata_.chunk)) {
    return absl::UnimplementedError("its chunks are not in C order");
  }
  // A chunk at the edge, which has more elements than the array, is no place of a box.
  for (int d = 0; d < metadata_.shape.rank(); ++d) {
    if (metadata_.shape.dim(d) % metadata_.chunk.dim(d) != 0) {
      return absl::UnimplementedError("its chunks reach beyond it");
    }
  }
  constexpr int64_t kMaxPlaces = 100'000;
  if (CountOf(grid_) > kMaxPlaces) return absl::UnimplementedError("it has very many chunks");
  std::vector<TensorPlace> places;
  std::vector<int64_t> index(grid_.size());
  for (int64_t i = 0; i < CountOf(grid_); ++i) {
    int64_t rest = i;
    Box box;
    box.count.assign(metadata_.chunk.dims().begin(), metadata_.chunk.dims().end());
    box.start.resize(grid_.size());
    for (size_t d = grid_.size(); d-- > 0;) {
      index[d] = rest % grid_[d];
      rest /= grid_[d];
      box.start[d] = index[d] * box.count[d];
    }
    FSDP_ASSIGN_OR_RETURN(const std::optional<ValuePlace> place, Find(index));
    if (!place) return absl::UnimplementedError("a chunk of it is not stored");
    if (place->file.empty()) return absl::UnimplementedError("a chunk of it is in a B+tree node");
    // Files are distinguished by their names, and every array's first chunk has the same.
    if (!metadata_.shard && place->file == absl::StrCat(name_, "/", metadata_.KeyOf(index))) {
      return absl::UnimplementedError("each of its chunks is a file");
    }
    if (place->nbytes != chunk_bytes()) return absl::UnimplementedError("a chunk of it has the wrong size");
    places.push_back({JoinPath(directory, place->file), place->offset, std::move(box)});
  }
  return places;
}

}  // namespace fsdp
