// SPDX-License-Identifier: Apache-2.0
//
// CudaRecording: the shared state of the streams of one capture: its error, the streams that take part, and the memory
// that the graph must hold; and, for the events that were recorded in it, the last replay. Filled by the thread that
// captures; the functions about replays are thread-safe.
#ifndef FSDP_CUDA_CUDA_RECORDING_H_
#define FSDP_CUDA_CUDA_RECORDING_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/cuda/capture_arena.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class CudaStream;

// Implemented by an owner of captured work that must observe its replays: a process group, whose watchdog times
// collectives.
class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;

  // Called before the graph is put on `stream`, which it may make wait. On the thread that replays.
  virtual void BeforeReplay(Stream& stream) = 0;

  // Called in stream order, just before the launch; an error prevents the launch and becomes the stream's. Any thread.
  virtual absl::Status CheckReplay() = 0;

  // `done` is reached when the replay is.
  virtual void AfterReplay(const Event& done) = 0;
};

class CudaRecording {
 public:
  // `arena` holds the memory that is allocated during the capture.
  explicit CudaRecording(std::shared_ptr<CaptureArena> arena) : arena_(std::move(arena)) {}

  // The first error, which prevents the graph. Later work is not captured.
  const absl::Status& status() const { return status_; }
  // Keeps the first error; OK has no effect.
  void Note(const absl::Status& status) { status_.Update(status); }

  // The streams that take part; the first is the stream on which the capture began.
  const std::vector<CudaStream*>& streams() const { return streams_; }
  // The first stream that is added is the origin.
  void Add(CudaStream& stream) { streams_.push_back(&stream); }

  // Not after Release.
  const CaptureArena& arena() const { return *arena_; }

  // Holds memory that the captured work uses and that does not belong to the arena.
  void Hold(std::vector<Buffer> uses);
  // Holds an object of CUDA's that the graph uses, such as an event.
  void Keep(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }

  // Called around each replay, in this order.
  const std::vector<std::shared_ptr<ReplayObserver>>& observers() const { return observers_; }
  void Add(std::shared_ptr<ReplayObserver> observer) { observers_.push_back(std::move(observer)); }

  // Ends the capture. Before it, waiting for an event of the capture is an error; afterwards the events are `replayed`,
  // which is reached at first.
  void End();
  bool ended() const;
  // `done` is the event after the last launch of the graph. Thread-safe.
  void SetReplayed(Event done);
  Event replayed() const;

  // Waits for the last replay, on behalf of an event of this recording. While the capture is under way:
  // kFailedPrecondition, which also becomes the capture's error.
  absl::Status AwaitReplay();
  // True if the last replay is done; false while the capture is under way. Never blocks.
  bool IsReplayed() const;

  // Drops the memory, the objects, the streams and the observers: the graph is destroyed, though events of it may
  // remain.
  void Release();

 private:
  std::shared_ptr<CaptureArena> arena_;
  absl::Status status_;
  std::vector<CudaStream*> streams_;
  // The memory of Hold; the graph's launches use it by address.
  std::vector<Buffer> held_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::shared_ptr<ReplayObserver>> observers_;

  mutable std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_
  Event replayed_;      // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_RECORDING_H_
