// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/write_queues.h"

#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {

std::unique_ptr<WriteQueue> WriteQueues::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<WriteQueue> queue = std::move(free_.back());
      free_.pop_back();
      return queue;
    }
  }
  return file_.NewWriteQueue(depth_);
}

void WriteQueues::Give(std::unique_ptr<WriteQueue> queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(queue));
}

absl::Status WriteQueues::Drain() {
  for (const std::unique_ptr<WriteQueue>& queue : free_) FSDP_RETURN_IF_ERROR(queue->Drain());
  return absl::OkStatus();
}

absl::Status WriteQueues::Finish() {
  for (const std::unique_ptr<WriteQueue>& queue : free_) FSDP_RETURN_IF_ERROR(queue->Finish());
  return absl::OkStatus();
}

}  // namespace fsdp
