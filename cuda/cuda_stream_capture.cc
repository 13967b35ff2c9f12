// SPDX-License-Identifier: Apache-2.0
//
// The part of CudaStream that captures (cuda_graph.h has the order). While recording_ is set, work goes into CUDA's
// capture of the stream instead of onto the GPU, on the calling thread, and its buffers are held by the recording:
//
//   not captured --BeginCapture (the origin)-------------> captured --EndCapture of the origin--> not captured
//                --CaptureWait for a captured event------>
//
// Failures are noted in the recording, and later work is not captured any more; the stream's own status_ does not
// change, because nothing ran. Checks come before CUDA's: CUDA would invalidate the whole capture without a reason.
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_event.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

absl::Status CudaStream::BeginCapture(std::shared_ptr<CudaRecording> recording) {
  MakeCurrent();
  memory_->BeginCapture();
  // Relaxed: other threads and streams continue as usual.
  const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  if (error != cudaSuccess) memory_->EndCapture();
  FSDP_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamBeginCapture", ordinal_));
  recording_ = std::move(recording);
  recording_->Add(*this);
  return absl::OkStatus();
}

// CUDA refuses to end a capture with streams that were forked and not joined. So each of the others is always joined
// here, by an event.
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
  for (CudaStream* stream : recording->streams()) stream->memory_->EndCapture();
  recording->End();
  FSDP_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamEndCapture", ordinal_));
  return graph;
}

void CudaStream::RefuseToCapture(std::string_view what) {
  recording_->Note(OnStream(absl::FailedPreconditionError(std::string(what)), name_));
}

// Memory that was allocated in this capture comes from the arena, which reuses it in the order of the origin. Another
// stream runs concurrently with the origin in a replay, so it must not use the arena's memory.
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

Event CudaStream::RecordForHost() {
  if (!capturing()) return Record();
  absl::StatusOr<std::shared_ptr<CudaEvent>> event = CudaEvent::Create(ordinal_);
  if (!event.ok()) {
    recording_->Note(event.status());
    return Event();
  }
  MakeCurrent();
  (*event)->RecordInGraph(stream_, status_, failures_, recording_);
  return Event(*std::move(event));
}

// `cuda_event`, if any, belongs to a capture that is under way, in which this stream takes part from now on; the stream
// is drained first, so that the graph does not depend on work outside of it. Other events are waited for immediately,
// because a graph cannot depend on work that it does not contain.
void CudaStream::CaptureWait(const Event& event, CudaEvent* cuda_event) {
  if (cuda_event == nullptr) return recording_->Note(event.Synchronize());
  const std::shared_ptr<CudaRecording>& recording = cuda_event->recording();
  if (cuda_event->is_for_host()) {
    return recording->Note(
        OnStream(absl::FailedPreconditionError("waits in a capture for an event that is for the host"), name_));
  }
  if (capturing() && recording_ != recording) return RefuseToCapture("waits for an event of another capture");
  if (!capturing()) {
    recording->Note(Synchronize());
    recording_ = recording;
    recording_->Add(*this);
    memory_->BeginCapture();
  }
  MakeCurrent();
  recording_->Note(cuda_event->MakeWait(stream_, ordinal_));
  AddFailures(cuda_event->failures(), failures_);
}

}  // namespace fsdp
