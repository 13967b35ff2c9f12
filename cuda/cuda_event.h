// SPDX-License-Identifier: Apache-2.0
//
// CudaEvent: the CUDA device's state behind an Event. A CUDA event is not enough, because a stream may have to defer
// recording it until earlier host work on the stream has run (cuda_stream.h). So the event is first *recorded*, on the
// host, with the stream's error so far, and then *reached*, on the GPU. An event that was recorded in a capture is
// reached when the last replay of the graph is, or, if it is for the host, when that replay gets to its place.
// Thread-safe.
#ifndef FSDP_CUDA_CUDA_EVENT_H_
#define FSDP_CUDA_CUDA_EVENT_H_

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/cuda/cuda_recording.h"
#include "fsdp/tensor/async_failure.h"
#include "fsdp/tensor/stream.h"

// CUDA's, so that its headers need not be included here.
struct CUevent_st;
struct CUstream_st;

namespace fsdp {

class CudaEvent final : public Event::State {
 public:
  // On GPU `device`; neither recorded nor reached. Same errors as CudaStatus.
  static absl::StatusOr<std::shared_ptr<CudaEvent>> Create(int device);
  ~CudaEvent() override;

  // Waits on the host for the recording, then for the GPU. Returns the error of the stream up to the event.
  absl::Status Synchronize() override;
  // False until it is recorded; never blocks.
  bool Query() override;

  // Called once, by the stream: records the event on `stream`, whose first error so far is `so_far` and whose work may
  // still fail with `failures`. It is recorded after an error too, because work before the error may still run.
  // `recording`: the recording that the stream's work is part of, or null.
  void RecordOn(CUstream_st* stream, const absl::Status& so_far, const AsyncFailures& failures,
                std::shared_ptr<CudaRecording> recording);

  // As RecordOn in a capture, which becomes part of `recording`: an event for the host (GraphStream::RecordForHost).
  void RecordInGraph(CUstream_st* stream, const absl::Status& so_far, const AsyncFailures& failures,
                     std::shared_ptr<CudaRecording> recording);

  // Whether RecordOn or RecordInGraph was called; never blocks.
  bool recorded() const { return recorded_.load(std::memory_order_acquire); }

  // Makes `stream` wait for this event; blocks the calling thread until it is recorded. Returns the error of the stream
  // that recorded it, or an error of the wait itself.
  absl::Status MakeWait(CUstream_st* stream, int device);

  // The failures that the work before the event may still have. Valid after the event was recorded.
  const AsyncFailures& failures() const { return failures_; }

  // Blocks the calling thread until the event was recorded, and not until it is reached; returns the error of the
  // stream up to it.
  absl::Status AwaitRecord();

  // True if RecordInGraph was called. Valid after the event was recorded.
  bool is_for_host() const { return is_for_host_; }

  // Null unless it was recorded in a capture. Valid after the event was recorded.
  const std::shared_ptr<CudaRecording>& recording() const { return recording_; }

 private:
  CudaEvent(int device, std::shared_ptr<CUevent_st> event) : device_(device), event_(std::move(event)) {}

  // Publishes the fields that a record sets.
  void SetRecorded(const absl::Status& status, const AsyncFailures& failures, std::shared_ptr<CudaRecording> recording);

  // Blocks the calling thread until the event was recorded.
  void AwaitRecorded();

  // Of an event for the host: the event after the last replay of its graph, null before the first replay.
  std::shared_ptr<CudaEvent> LastReplay() const;
  absl::Status AwaitPlaceInReplay();

  const int device_;
  const std::shared_ptr<CUevent_st> event_;  // shared with the recording, whose graph records it

  std::atomic<bool> recorded_{false};
  absl::Status status_;                       // written before `recorded_` is set, only read after it
  AsyncFailures failures_;                    // likewise
  std::shared_ptr<CudaRecording> recording_;  // likewise
  bool is_for_host_ = false;                  // likewise
  std::mutex mutex_;                          // orders setting the flag against going to sleep
  std::condition_variable raised_;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_EVENT_H_
