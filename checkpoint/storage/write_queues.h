// SPDX-License-Identifier: Apache-2.0
//
// WriteQueues: the write queues of one file, one for each thread that is at work. Thread-safe but for Drain and
// Finish.
//
//   std::unique_ptr<WriteQueue> queue = queues.Take();
//   ... write a block ...
//   queues.Give(std::move(queue));
//   ... when all threads are done:
//   FSDP_RETURN_IF_ERROR(queues.Drain());
//   FSDP_RETURN_IF_ERROR(queues.Finish());
#ifndef FSDP_CHECKPOINT_STORAGE_WRITE_QUEUES_H_
#define FSDP_CHECKPOINT_STORAGE_WRITE_QUEUES_H_

#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

class WriteQueues {
 public:
  // Each queue has `depth` blocks of memory (File::NewWriteQueue). `file` must outlive it.
  WriteQueues(File& file, int depth) : file_(file), depth_(depth) {}

  // A queue that nobody else has; given back unless an error stops everything.
  std::unique_ptr<WriteQueue> Take();
  void Give(std::unique_ptr<WriteQueue> queue);

  // Of all queues, once all have been given back. The first error.
  absl::Status Drain();
  absl::Status Finish();  // after Drain

 private:
  File& file_;
  const int depth_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<WriteQueue>> free_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_WRITE_QUEUES_H_
