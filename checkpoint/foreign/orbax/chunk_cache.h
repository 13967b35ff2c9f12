// SPDX-License-Identifier: Apache-2.0
//
// ChunkCache: decoded chunks of all arrays of a source, up to a number of bytes; the one that was used least recently
// is dropped first. Several threads that want the same chunk decode it once. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_CACHE_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// An array's number, and the number of the chunk in it.
using ChunkNumber = std::pair<int64_t, int64_t>;

class ChunkCache {
 public:
  using Bytes = std::vector<std::byte>;

  explicit ChunkCache(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // The chunk, made by `decode` unless it is kept. The result stays valid when the cache drops it. Errors of `decode`,
  // which are not kept.
  absl::StatusOr<std::shared_ptr<const Bytes>> Get(const ChunkNumber& number,
                                                   const std::function<absl::StatusOr<Bytes>()>& decode);

 private:
  struct Slot {
    std::mutex mutex;                        // held while the chunk is decoded
    std::shared_ptr<const Bytes> bytes;      // guarded by mutex; null until then
    std::list<ChunkNumber>::iterator order;  // guarded by ChunkCache::mutex_
    int64_t nbytes = 0;                      // the same
  };

  void Drop(const ChunkNumber& number, const std::shared_ptr<Slot>& slot);

  const int64_t most_bytes_;
  std::mutex mutex_;
  // All guarded by mutex_.
  std::map<ChunkNumber, std::shared_ptr<Slot>> slots_;
  std::list<ChunkNumber> order_;  // the least recently used first
  int64_t nbytes_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_CHUNK_CACHE_H_
