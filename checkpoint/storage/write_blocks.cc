// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/write_blocks.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

BlockWriteShape ShapeOfBlockWrites(int64_t buffer_bytes, int io_threads) {
  constexpr int64_t kEnoughBlocks = 5;  // per thread: one to fill, four in flight
  const int64_t blocks = std::max<int64_t>(buffer_bytes / kBlockBytes, 1);
  // Threads before depth: a second thread hides the work of filling, which a deeper queue of one thread does not.
  const int64_t threads = std::clamp<int64_t>(blocks, 1, std::max(1, io_threads));
  return {static_cast<int>(threads), static_cast<int>(std::clamp<int64_t>(blocks / threads, 1, kEnoughBlocks))};
}

absl::Status WriteBlocks(File& file, int64_t nbytes, const BlockFiller& fill, ThreadPool& pool, int queue_depth) {
  FSDP_RETURN_IF_ERROR(file.Reserve(nbytes));
  WriteQueues queues(file, queue_depth);
  FSDP_RETURN_IF_ERROR(pool.ParallelFor(BlockCount(nbytes), [&](int64_t i) -> absl::Status {
    const int64_t begin = i * kBlockBytes;
    std::unique_ptr<WriteQueue> queue = queues.Take();
    FSDP_ASSIGN_OR_RETURN(std::byte* const block, queue->Buffer());
    const auto bytes = absl::MakeSpan(block, std::min(kBlockBytes, nbytes - begin));
    FSDP_RETURN_IF_ERROR(fill(begin, bytes));
    FSDP_RETURN_IF_ERROR(queue->Write(begin, bytes));
    queues.Give(std::move(queue));
    return absl::OkStatus();
  }));
  // All queues are drained before any is finished: unaligned ends go through the page cache, which must not meet a
  // direct write of another queue in the same page (write_queue.h).
  FSDP_RETURN_IF_ERROR(queues.Drain());
  return queues.Finish();
}

}  // namespace fsdp
