// SPDX-License-Identifier: Apache-2.0
//
// DecodeBlosc: a chunk in the container of c-blosc (version 1 and 2 of the format), as zarr's codec "blosc" writes it:
//
//   version | version of the codec | flags | size of an element | bytes u32 | bytes of a block u32 | stored bytes u32
//   offsets of the blocks, u32 each | blocks
//   block    one stream, or one for each byte of an element: length u32 | bytes, compressed unless it has all of them
//
// Before compression the bytes of a block are shuffled: all first bytes of its elements, then all second bytes, ...
// Read: the codecs zstd, lz4, lz4hc and zlib; no shuffle, shuffled bytes, shuffled bits. kUnimplemented names blosclz
// and snappy, for which there is no decoder here. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_BLOSC_CHUNK_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_BLOSC_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fsdp {

inline constexpr int64_t kBloscHeaderBytes = 16;

// Fills all of `out`. kDataLoss when `chunk` is damaged or has another size than `out`.
absl::Status DecodeBlosc(std::string_view chunk, absl::Span<std::byte> out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_BLOSC_CHUNK_H_
