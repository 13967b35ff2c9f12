// SPDX-License-Identifier: Apache-2.0
//
// ChunkStreams: compressed chunks that are too large to be kept decoded. A stream decodes a chunk from its beginning; a
// few of them stay where they are, and a read uses the nearest one before it. Reads in about the order of the chunk
// therefore decode it once for each thread, in bounded memory. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_STREAMS_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/orbax/chunk_cache.h"
#include "fsdp/checkpoint/foreign/orbax/chunk_codec.h"
#include "fsdp/checkpoint/foreign/orbax/key_values.h"

namespace fsdp {

class ChunkStream;

// True for a codec that can be decoded from the beginning on: zstd and zlib without CRCs.
bool CanStream(const ChunkCodec& codec);

class ChunkStreams {
 public:
  ChunkStreams();
  ~ChunkStreams();

  // Fills `out` with the elements of the chunk from byte `offset` on. The chunk has `nbytes` bytes of elements, and is
  // stored at `place` of `values`. kDataLoss when it is damaged, also if it is longer.
  absl::Status Read(const ChunkNumber& number, Compressor compressor, const KeyValues& values, const ValuePlace& place,
                    int64_t nbytes, int64_t offset, absl::Span<std::byte> out);

 private:
  // About a hundred streams of what Orbax writes.
  static constexpr size_t kMaxIdleBytes = size_t{256} << 20;

  std::unique_ptr<ChunkStream> Take(const ChunkNumber& number, int64_t offset);
  void Put(std::unique_ptr<ChunkStream> stream);

  std::mutex mutex_;
  std::list<std::unique_ptr<ChunkStream>> idle_;  // guarded by mutex_; the oldest first
  size_t idle_nbytes_ = 0;                        // guarded by mutex_: the memory of idle_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_STREAMS_H_
