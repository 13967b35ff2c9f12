// SPDX-License-Identifier: Apache-2.0
//
// ChunkCodec: how the elements of a zarr chunk become the bytes that are stored, and back: at most one compressor, and
// CRC32C before and after it. The decoded size is always known from the chunk's shape, so no size in compressed bytes
// is ever trusted. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_CODEC_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fsdp {

enum class Compressor : uint8_t { kNone, kZstd, kZlib, kBlosc };

// The bytes of a CRC32C that follows what it is of.
inline constexpr int64_t kCrc32cBytes = 4;

struct ChunkCodec {
  Compressor compressor = Compressor::kNone;
  bool crc_of_elements = false;  // compressed together with them
  bool crc_of_stored = false;    // of the stored bytes

  // True if the stored bytes are the elements.
  bool is_plain() const { return compressor == Compressor::kNone && !crc_of_elements && !crc_of_stored; }
};

// Fills `out` with the elements of a chunk that is stored as `stored`. kDataLoss when the bytes are damaged or have
// another size; kUnimplemented names a compression that cannot be read.
absl::Status DecodeChunk(const ChunkCodec& codec, std::string_view stored, absl::Span<std::byte> out);

// The smallest and the largest number of bytes that a chunk of `nbytes` bytes of elements may be stored in.
int64_t LeastStoredBytes(const ChunkCodec& codec, int64_t nbytes);
int64_t MostStoredBytes(const ChunkCodec& codec, int64_t nbytes);

// Removes the CRC32C at the end of `bytes`; kDataLoss if it is missing or another one.
absl::Status TakeCrc32c(std::string_view& bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_CODEC_H_
