// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_event.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

absl::Status CudaStream::BeginCapture(std::shared_ptr<CudaRecording> recording) {
  MakeCurrent();
  // Relaxed: other threads, and other streams of this one, go on as always.
  FSDP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture", ordinal_));
  recording_ = std::move(recording);
  recording_->Add(*this);
  return absl::OkStatus();
}

absl::StatusOr<CUgraph_st*> CudaStream::EndCapture() {
  const std::shared_ptr<CudaRecording> recording = recording_;
  if (recording == nullptr) return absl::FailedPreconditionError("no capture began");
  MakeCurrent();
  for (CudaStream* stream : recording->streams()) {
    if (stream != this) Wait(stream->Record());
  }
  for (CudaStream* stream : recording->streams()) stream->recording_ = nullptr;
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
  recording->End();
  FSDP_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamEndCapture", ordinal_));
  return graph;
}

void CudaStream::RefuseToCapture(std::string_view what) {
  recording_->Note(OnStream(absl::FailedPreconditionError(std::string(what)), name_));
}

void CudaStream::CaptureWork(std::vector<Buffer> uses, const Launch& launch) {
  if (!recording_->status().ok()) return;
  for (const Buffer& use : uses) {
    if (recording_->streams()[0] == this || !use || !recording_->arena().Contains(use.data())) continue;
    return RefuseToCapture(
        absl::StrCat("its captured work uses memory that was allocated in this capture, which is for stream \"",
                     recording_->streams()[0]->name_, "\": allocate it before"));
  }
  MakeCurrent();
  if (const absl::Status launched = launch(stream_); !launched.ok()) recording_->Note(OnStream(launched, name_));
  recording_->Hold(std::move(uses));
}

// `cuda_event`, if any, is of a capture that is under way, which this stream takes part in from now on. Other events
// are waited for here and now: a graph cannot depend on what it does not have.
void CudaStream::CaptureWait(const Event& event, CudaEvent* cuda_event) {
  if (cuda_event == nullptr) return recording_->Note(event.Synchronize());
  const std::shared_ptr<CudaRecording>& recording = cuda_event->recording();
  if (capturing() && recording_ != recording) return RefuseToCapture("waits for an event of another capture");
  if (!capturing()) {
    recording->Note(Synchronize());
    recording_ = recording;
    recording_->Add(*this);
  }
  MakeCurrent();
  recording_->Note(cuda_event->MakeWait(stream_, ordinal_));
  AddFailures(cuda_event->failures(), failures_);
}

}  // namespace fsdp
