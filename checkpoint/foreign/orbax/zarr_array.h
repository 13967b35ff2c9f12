// SPDX-License-Identifier: Apache-2.0
//
// ZarrArray: the elements of one zarr array, read from its chunks. A chunk that is stored without compression is read
// in place; a compressed one is decoded once and kept for a while (chunk_cache.h), or, if the chunks along one row of
// the grid are too large for that, decoded as a stream (chunk_streams.h). Elements whose chunk is not stored have the
// fill value. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_ARRAY_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/orbax/chunk_cache.h"
#include "fsdp/checkpoint/foreign/orbax/chunk_streams.h"
#include "fsdp/checkpoint/foreign/orbax/key_values.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_metadata.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// Decoded chunks of all arrays of a source.
struct ChunkMemory {
  static constexpr int64_t kCachedBytes = int64_t{256} << 20;

  ChunkCache cache{kCachedBytes};
  ChunkStreams streams;
};

class ZarrArray {
 public:
  // The array NAME of `values`, with the number `number` among those that share `memory`. Reads its metadata. Errors as
  // ParseZarray, with the key.
  static absl::StatusOr<ZarrArray> Open(const KeyValues& values, const std::string& name, int64_t number,
                                        ChunkMemory& memory);

  const std::string& name() const { return name_; }
  int64_t number() const { return number_; }
  const ZarrMetadata& metadata() const { return metadata_; }

  // Counts the chunks, or shards, that are not stored, by the keys of the array. A part of an index that no shard has
  // is not counted.
  absl::Status CountMissing();
  int64_t missing() const { return missing_; }

  // The bytes of elements in the chunks that are stored, at most all of the array. Known after CountMissing.
  int64_t StoredBytes() const;

  // From now on a chunk that is not stored is damage: its writer stores all of them.
  void RequireAllChunks() { is_complete_ = true; }

  // Elements `interval`, in the dtype of the metadata and little-endian, to `out`. kDataLoss names the chunk.
  absl::Status Read(const Interval& interval, std::byte* out) const;

  // The number of elements in a row of chunks, that is, of the grid: reads of whole ones decode no chunk twice.
  int64_t BandNumel() const;

  // The place of the chunks, if they are not compressed and elements are in C order; kUnimplemented otherwise.
  // `directory` is the directory of the values.
  absl::StatusOr<std::vector<TensorPlace>> Places(const std::string& directory) const;

 private:
  ZarrArray(const KeyValues& values, std::string name, int64_t number, ChunkMemory& memory)
      : values_(&values), name_(std::move(name)), number_(number), memory_(&memory) {}

  // The stored bytes of the chunk at `index` of the grid of chunks; nullopt if it is not stored.
  absl::StatusOr<std::optional<ValuePlace>> Find(const std::vector<int64_t>& index) const;
  absl::StatusOr<std::optional<ValuePlace>> FindInShard(const std::vector<int64_t>& index) const;

  // Reads the part of `box` that the chunk at `index` holds. `out` points to element `first` of the array, row-major.
  absl::Status ReadPart(const std::vector<int64_t>& index, const Box& box, int64_t first, std::byte* out) const;

  // Copies `part` of the elements of a chunk to `out`.
  absl::Status ReadChunk(const ChunkNumber& number, const ValuePlace& place, StridedBox part, std::byte* out) const;
  absl::StatusOr<ChunkCache::Bytes> Decode(const ValuePlace& place) const;

  int64_t element_bytes() const { return static_cast<int64_t>(metadata_.fill.size()); }
  int64_t chunk_bytes() const { return metadata_.chunk.numel() * element_bytes(); }

  // The number of a chunk: its row-major place in the grid.
  int64_t NumberOf(const std::vector<int64_t>& index) const;

  const KeyValues* values_;
  std::string name_;
  int64_t number_;
  ChunkMemory* memory_;
  ZarrMetadata metadata_;
  std::vector<int64_t> grid_;  // of chunks
  int64_t missing_ = 0;        // chunks or shards
  int64_t stored_numel_ = 0;   // elements in those that are there
  bool is_complete_ = false;
  bool is_streamed_ = false;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_ARRAY_H_
