// SPDX-License-Identifier: Apache-2.0
//
// CudaRecording: the state that the streams of one capture share: why it fails, which streams take part, and the memory
// that the graph is to hold; and, for the events that were recorded in it, the last replay. Filled by the thread that
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

// Implemented by an owner of captured work that must know of its replays: a process group, whose watchdog times
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

  // Why there will be no graph: the first error. Work is not captured after one.
  const absl::Status& status() const { return status_; }
  // Keeps the first error; OK has no effect.
  void Note(const absl::Status& status) { status_.Update(status); }

  // The streams that take part, first the one that the capture began on.
  const std::vector<CudaStream*>& streams() const { return streams_; }
  // The first stream that is added is the origin.
  void Add(CudaStream& stream) { streams_.push_back(&stream); }

  // Not after Release.
  const CaptureArena& arena() const { return *arena_; }

  // Memory that the captured work uses and that is not the arena's.
  void Hold(std::vector<Buffer> uses);

  // Called around each replay, in this order.
  const std::vector<std::shared_ptr<ReplayObserver>>& observers() const { return observers_; }
  void Add(std::shared_ptr<ReplayObserver> observer) { observers_.push_back(std::move(observer)); }

  // Until it is over, its events cannot be waited for; afterwards they are `replayed`, at first reached.
  void End();
  bool ended() const;
  // `done` is the event after the last launch of the graph. Thread-safe.
  void SetReplayed(Event done);
  Event replayed() const;

  // Waits for the last replay, on behalf of an event of this recording. kFailedPrecondition, also noted as why the
  // capture fails, while the capture is under way.
  absl::Status AwaitReplay();
  // True when the last replay is done; false while the capture is under way. Never blocks.
  bool IsReplayed() const;

  // Drops the memory, the streams and the observers: the graph is gone, though events of it may be left.
  void Release();

 private:
  std::shared_ptr<CaptureArena> arena_;
  absl::Status status_;
  std::vector<CudaStream*> streams_;
  // Memory of Hold; the graph's launches use it by address.
  std::vector<Buffer> held_;
  std::vector<std::shared_ptr<ReplayObserver>> observers_;

  mutable std::mutex mutex_;
  bool ended_ = false;  // guarded by mutex_
  Event replayed_;      // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_RECORDING_H_
