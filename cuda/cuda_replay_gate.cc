// SPDX-License-Identifier: Apache-2.0
//
//   gate's stream   wait for `event`, record event_
//   replay          launch of: ... wait for event_ ...
//
// A launch waits for the last record that was made before it, and an event that was never recorded counts as reached.
// So the record must have been made before the launch. The gate's stream may have to defer it (cuda_stream.h); then the
// whole replay waits for `event`.

#include "fsdp/cuda/cuda_replay_gate.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_event.h"
#include "fsdp/cuda/cuda_recording.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

class CudaReplayGate::Opening final : public ReplayObserver {
 public:
  // `opened` comes after the record of the gate's event.
  void Set(Event opened) {
    const std::lock_guard<std::mutex> lock(mutex_);
    opened_ = std::move(opened);
  }
  Event opened() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return opened_;
  }

  void BeforeReplay(Stream& stream) override {
    const Event event = opened();
    if (const auto state = StateOf(event); state != nullptr && !state->recorded()) stream.Wait(event);
  }
  absl::Status CheckReplay() override {
    const auto state = StateOf(opened());
    return state == nullptr ? absl::OkStatus() : state->AwaitRecord();
  }
  void AfterReplay(const Event&) override {}

 private:
  static std::shared_ptr<CudaEvent> StateOf(const Event& event) {
    return std::dynamic_pointer_cast<CudaEvent>(event.state());
  }

  mutable std::mutex mutex_;
  Event opened_;  // guarded by mutex_
};

absl::StatusOr<std::unique_ptr<ReplayGate>> CudaReplayGate::Create(Device& device, int ordinal) {
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "cudaSetDevice", ordinal));
  cudaEvent_t event;
  FSDP_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", ordinal));
  std::shared_ptr<CUevent_st> owned(event, [](CUevent_st* e) { cudaEventDestroy(e); });
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.CreateStream("replay-gate"));
  return std::unique_ptr<ReplayGate>(new CudaReplayGate(std::move(owned), std::move(stream), ordinal));
}

CudaReplayGate::CudaReplayGate(std::shared_ptr<CUevent_st> event, std::unique_ptr<Stream> stream, int ordinal)
    : event_(std::move(event)), opening_(std::make_shared<Opening>()), stream_(std::move(stream)), ordinal_(ordinal) {}

CudaReplayGate::~CudaReplayGate() = default;

void CudaReplayGate::CloseUntil(const Event& event) {
  stream_->Wait(event);
  CudaStream::Of(*stream_).Issue({}, [event = event_, ordinal = ordinal_](CUstream_st* stream) {
    return CudaStatus(cudaEventRecord(event.get(), stream), "cudaEventRecord", ordinal);
  });
  opening_->Set(stream_->Record());
}

void CudaReplayGate::Pass(Stream& stream) {
  CudaStream& on = CudaStream::Of(stream);
  if (!on.capturing()) return stream.Wait(opening_->opened());
  on.Issue({}, [event = event_, ordinal = ordinal_](CUstream_st* captured) {
    return CudaStatus(cudaStreamWaitEvent(captured, event.get(), cudaEventWaitExternal), "cudaStreamWaitEvent",
                      ordinal);
  });
  on.recording()->Keep(event_);
  on.recording()->Add(opening_);
}

}  // namespace fsdp
