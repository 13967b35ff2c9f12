// SPDX-License-Identifier: Apache-2.0
//
// An event has two stages, and so does a wait for it:
//
//   made  --RecordOn, by the stream's caller or thread-->  recorded  --by the GPU-->  reached
//         a waiter blocks on raised_                                 a waiter asks CUDA
//
// CUDA itself cannot distinguish the first two states: an event that was never recorded counts as reached, so a wait
// for it would pass immediately. For the same reason a wait for an event within a graph first waits until the last
// replay has been launched, because the launch records the event.

#include "fsdp/cuda/cuda_event.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_status.h"

namespace fsdp {

absl::StatusOr<std::shared_ptr<CudaEvent>> CudaEvent::Create(int device) {
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice", device));
  cudaEvent_t event;
  // An event without timing is much cheaper to wait for.
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", device));
  return std::shared_ptr<CudaEvent>(
      new CudaEvent(device, std::shared_ptr<CUevent_st>(event, [](CUevent_st* e) { cudaEventDestroy(e); })));
}

CudaEvent::~CudaEvent() = default;

void CudaEvent::RecordOn(CUstream_st* stream, const absl::Status& so_far, const AsyncFailures& failures,
                         std::shared_ptr<CudaRecording> recording) {
  const absl::Status recorded = CudaStatus(cudaEventRecord(event_.get(), stream), "cudaEventRecord", device_);
  SetRecorded(so_far.ok() ? recorded : so_far, failures, std::move(recording));
}

void CudaEvent::RecordInGraph(CUstream_st* stream, const absl::Status& so_far, const AsyncFailures& failures,
                              std::shared_ptr<CudaRecording> recording) {
  const absl::Status recorded =
      CudaStatus(cudaEventRecordWithFlags(event_.get(), stream, cudaEventRecordExternal), "cudaEventRecord", device_);
  recording->Note(recorded);
  recording->Keep(event_);
  is_for_host_ = true;
  SetRecorded(so_far.ok() ? recorded : so_far, failures, std::move(recording));
}

void CudaEvent::SetRecorded(const absl::Status& status, const AsyncFailures& failures,
                            std::shared_ptr<CudaRecording> recording) {
  status_ = status;
  failures_ = failures;
  recording_ = std::move(recording);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    recorded_.store(true, std::memory_order_release);
  }
  raised_.notify_all();
}

void CudaEvent::AwaitRecorded() {
  if (recorded()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  raised_.wait(lock, [this] { return recorded(); });
}

absl::Status CudaEvent::AwaitRecord() {
  AwaitRecorded();
  return status_;
}

absl::Status CudaEvent::MakeWait(CUstream_st* stream, int device) {
  AwaitRecorded();
  const absl::Status waits = CudaStatus(cudaStreamWaitEvent(stream, event_.get(), 0), "cudaStreamWaitEvent", device);
  return status_.ok() ? waits : status_;
}

std::shared_ptr<CudaEvent> CudaEvent::LastReplay() const {
  return std::dynamic_pointer_cast<CudaEvent>(recording_->replayed().state());
}

absl::Status CudaEvent::AwaitPlaceInReplay() {
  const std::shared_ptr<CudaEvent> replay = LastReplay();
  if (replay == nullptr) return absl::OkStatus();
  // A replay after an error was not launched.
  FSDP_RETURN_IF_ERROR(replay->AwaitRecord());
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(event_.get()), "cudaEventSynchronize", device_));
  return FirstFailure(replay->failures_);
}

absl::Status CudaEvent::Synchronize() {
  AwaitRecorded();
  if (recording_ != nullptr) {
    return is_for_host_ && recording_->ended() ? AwaitPlaceInReplay() : recording_->AwaitReplay();
  }
  const absl::Status reached = CudaStatus(cudaEventSynchronize(event_.get()), "cudaEventSynchronize", device_);
  if (!status_.ok()) return status_;
  return reached.ok() ? FirstFailure(failures_) : reached;
}

bool CudaEvent::Query() {
  if (!recorded()) return false;
  if (recording_ != nullptr) {
    if (!is_for_host_ || !recording_->ended()) return recording_->IsReplayed();
    const std::shared_ptr<CudaEvent> replay = LastReplay();
    if (replay == nullptr) return true;
    if (!replay->recorded()) return false;
  }
  const cudaError_t answer = cudaEventQuery(event_.get());
  if (answer == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  // After an error of the GPU there is nothing left to wait for; Synchronize returns the error.
  return true;
}

}  // namespace fsdp
