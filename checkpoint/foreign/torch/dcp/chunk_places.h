// SPDX-License-Identifier: Apache-2.0
//
// ChunkPlaces: where the elements of a DCP directory's chunks are in their files, once that is known.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_CHUNK_PLACES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_CHUNK_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_chunks.h"
#include "fsdp/checkpoint/source/strided_read.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The position of a chunk's elements in its file; known once its archive has been read.
struct DcpChunkPlace {
  int64_t offset = 0;            // in the file, of the first element
  std::vector<int64_t> strides;  // in elements

  int64_t touched_bytes = 0;  // TorchTensor::touched_bytes
  bool is_contiguous = true;
};

// The known positions, by the number of the chunk. Nearly all chunks are row-major and take eight bytes. Not
// thread-safe.
class ChunkPlaces {
 public:
  explicit ChunkPlaces(const DcpChunks& chunks) : chunks_(chunks), offsets_(chunks.size(), kUnknown) {}

  std::optional<DcpChunkPlace> Find(size_t chunk, DType dtype) const {
    if (chunk >= offsets_.size() || offsets_[chunk] == kUnknown) return std::nullopt;
    if (const auto at = others_.find(chunk); at != others_.end()) return at->second;
    const Shape shape = *Shape::Create(chunks_.count(chunk));  // valid, since Add has seen it
    return DcpChunkPlace{offsets_[chunk], RowMajorStrides(shape), shape.numel() * SizeOf(dtype), true};
  }

  void Add(size_t chunk, DcpChunkPlace place, DType dtype) {
    if (chunk >= offsets_.size()) offsets_.resize(chunks_.size(), kUnknown);  // a tensor in a value
    offsets_[chunk] = place.offset;
    const Shape shape = *Shape::Create(chunks_.count(chunk));
    const bool is_plain = place.is_contiguous && place.strides == RowMajorStrides(shape) &&
                          place.touched_bytes == shape.numel() * SizeOf(dtype);
    if (!is_plain) others_.try_emplace(chunk, std::move(place));
  }

 private:
  static constexpr int64_t kUnknown = -1;

  const DcpChunks& chunks_;
  std::vector<int64_t> offsets_;
  absl::flat_hash_map<size_t, DcpChunkPlace> others_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_CHUNK_PLACES_H_
