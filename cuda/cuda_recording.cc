// SPDX-License-Identifier: Apache-2.0

#include "fsdp/cuda/cuda_recording.h"

namespace fsdp {

void CudaRecording::Hold(std::vector<Buffer> uses) {
  for (Buffer& use : uses) {
    // The graph holds the arena anyway; a reference here would prevent reuse of the block.
    if (use && !arena_->Contains(use.data())) held_.push_back(std::move(use));
  }
}

void CudaRecording::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
}

bool CudaRecording::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

void CudaRecording::SetReplayed(Event done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  replayed_ = std::move(done);
}

Event CudaRecording::replayed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return replayed_;
}

// The states of an event of a recording: under way (waiting is an error), ended and never replayed (counts as reached,
// as an empty Event does), replayed (reached when that replay is).
absl::Status CudaRecording::AwaitReplay() {
  if (ended()) return replayed().Synchronize();
  Note(absl::FailedPreconditionError("an event of work that is being captured cannot be waited for by the host"));
  return status_;
}

bool CudaRecording::IsReplayed() const { return ended() && replayed().Query(); }

void CudaRecording::Release() {
  streams_.clear();
  observers_.clear();
  held_.clear();
  kept_.clear();
  arena_ = nullptr;
}

}  // namespace fsdp
