// SPDX-License-Identifier: Apache-2.0
//
// CaptureArena: the device memory that is allocated while work is captured (cuda_graph.h). The graph owns its addresses
// for as long as it lives. A block that is freed during the capture serves a later allocation of the same capture: only
// one stream uses both, so in every replay too the second use comes after the first, and a graph needs about as much
// memory as a step without capture. Thread-safe.
#ifndef FSDP_CUDA_CAPTURE_ARENA_H_
#define FSDP_CUDA_CAPTURE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tensor/buffer.h"

namespace fsdp {

class CaptureArena : public std::enable_shared_from_this<CaptureArena> {
 public:
  // Allocates device memory: CudaMemory's pool.
  using Source = std::function<absl::StatusOr<Buffer>(int64_t nbytes)>;

  // Takes blocks from `source`, and returns them after this object and all its buffers are gone: the graph holds it for
  // as long as it may be replayed.
  explicit CaptureArena(Source source) : source_(std::move(source)) {}

  // At least `nbytes`, at an address that the graph owns. Errors come from the source. Serves from a free block of at
  // most twice the size, if there is one.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes);

  // Whether `data` is inside a block.
  bool Contains(const void* data) const;

  // The bytes of all blocks, including free ones. The memory counts as allocated on the device until the graph is
  // destroyed.
  int64_t allocated_bytes() const;

 private:
  // Makes a block free for the next Allocate.
  void Free(size_t block);

  const Source source_;
  mutable std::mutex mutex_;
  std::vector<Buffer> blocks_;           // guarded by mutex_
  std::multimap<int64_t, size_t> free_;  // guarded by mutex_; blocks by their size
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CAPTURE_ARENA_H_
