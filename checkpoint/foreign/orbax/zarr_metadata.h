// SPDX-License-Identifier: Apache-2.0
//
// ZarrMetadata: what the JSON of a zarr array says: .zarray of version 2, zarr.json of version 3. An array is divided
// into chunks of equal shape; those at the edge are stored whole, too. With version 3's codec sharding_indexed one key
// holds a shard, a grid of chunks with an index of them; otherwise a key holds one chunk. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_METADATA_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_METADATA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/orbax/chunk_codec.h"
#include "fsdp/checkpoint/foreign/orbax/narrow_integer.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The longest metadata of an array, and the most dimensions: tensorstore's bound.
inline constexpr int64_t kMaxZarrMetadataBytes = int64_t{1} << 20;
inline constexpr int kMaxZarrRank = 32;

struct ZarrMetadata {
  // The dtype of the elements; nullopt for an array that is not a tensor here (float4, texts, structures).
  std::optional<DType> dtype;
  std::string dtype_name;                    // as the file has it, for messages
  bool is_swapped = false;                   // big-endian elements of more than one byte
  std::optional<NarrowInteger> narrow = {};  // what each byte holds, if it is an integer of fewer bits

  Shape shape;
  Shape chunk;                   // of the smallest part that is decoded as a whole; as long as `shape`
  std::vector<int64_t> strides;  // of a decoded chunk, in elements: of C order, of F order, or transposed
  ChunkCodec codec;

  // The value of elements whose chunk is not stored: the bytes of one element, in the byte order of the file.
  std::string fill;

  // With shards, the shape of one, a multiple of `chunk`, and how its index is stored.
  std::optional<Shape> shard;
  ChunkCodec index_codec;
  bool is_index_first = false;

  // The part of the key before the numbers ("c" in version 3) and between them.
  std::string key_prefix;
  char separator = '.';

  // The shape of what one key holds.
  const Shape& stored() const { return shard ? *shard : chunk; }

  // "1.0", "c/1/0": what follows "NAME/" in the key of chunk or shard `index`. The inverse: nullopt for any other text.
  std::string KeyOf(absl::Span<const int64_t> index) const;
  std::optional<std::vector<int64_t>> IndexOfKey(std::string_view rest) const;
};

// kDataLoss names a member that is missing or contradicts another; kUnimplemented names a codec, filter or grid that is
// not read.
absl::StatusOr<ZarrMetadata> ParseZarray(std::string_view json);    // version 2
absl::StatusOr<ZarrMetadata> ParseZarrJson(std::string_view json);  // version 3

// The number of parts of `part` dimensions along each dimension of `shape`: a grid.
std::vector<int64_t> GridOf(const Shape& shape, const Shape& part);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_METADATA_H_
