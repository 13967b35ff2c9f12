// SPDX-License-Identifier: Apache-2.0
//
// A capture in order: 1. drain the origin; 2. route allocations of this thread to an arena; 3. begin the capture on the
// origin; 4. call `work`, whose calls the streams turn into nodes; 5. end the arena; 6. join the other streams and end
// the capture; 7. instantiate. Steps 5 and 6 happen even if the work failed, so that no stream stays in a capture.
//
// A replay is ordered as if the work had been put on each of its streams again: the origin first waits for all of them,
// then launches the graph, and then all of them wait for the origin. CUDA orders a graph only against the stream of its
// launch.

#include "fsdp/cuda/cuda_graph.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_status.h"

namespace fsdp {
namespace {

absl::StatusOr<cudaGraphExec_t> Instantiate(cudaGraph_t graph, int device) {
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  FSDP_RETURN_IF_ERROR(CudaStatus(error, "cudaGraphInstantiate", device));
  return exec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkGraph>> CudaGraph::Capture(CudaMemory& memory, CudaStream& origin,
                                                              const std::function<absl::Status()>& work) {
  if (!origin.capturing()) FSDP_RETURN_IF_ERROR(origin.Synchronize());
  std::shared_ptr<CaptureArena> arena = memory.BeginArena();
  if (arena == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("stream \"", std::string(origin.name()), "\": a capture on its device is under way already"));
  }
  const auto recording = std::make_shared<CudaRecording>(std::move(arena));
  absl::Status status = origin.BeginCapture(recording);
  if (status.ok()) {
    const absl::Status worked = work();
    // If the recording failed, it is the reason for any error that `work` returned.
    status = recording->status().ok() ? worked : recording->status();
  }
  memory.EndArena();
  absl::StatusOr<cudaGraph_t> graph = origin.EndCapture();
  if (!status.ok() || !graph.ok()) {
    if (graph.ok()) cudaGraphDestroy(*graph);
    return status.ok() ? graph.status() : status;
  }
  FSDP_ASSIGN_OR_RETURN(const cudaGraphExec_t exec, Instantiate(*graph, origin.ordinal()));
  return std::unique_ptr<WorkGraph>(new CudaGraph(recording, exec));
}

CudaGraph::~CudaGraph() {
  // The stream has this error too, and reports it.
  (void)recording_->replayed().Synchronize();
  cudaSetDevice(origin().ordinal());
  cudaGraphExecDestroy(exec_);
  recording_->Release();
}

void CudaGraph::Replay() {
  for (CudaStream* stream : recording_->streams()) {
    if (stream != &origin()) origin().Wait(stream->Record());
  }
  for (const auto& observer : recording_->observers()) observer->BeforeReplay(origin());
  origin().Issue({}, [recording = recording_, exec = exec_, device = origin().ordinal()](CUstream_st* stream) {
    for (const auto& observer : recording->observers()) FSDP_RETURN_IF_ERROR(observer->CheckReplay());
    return CudaStatus(cudaGraphLaunch(exec, stream), "cudaGraphLaunch", device);
  });
  const Event done = origin().Record();
  for (CudaStream* stream : recording_->streams()) {
    if (stream != &origin()) stream->Wait(done);
  }
  recording_->SetReplayed(done);
  for (const auto& observer : recording_->observers()) observer->AfterReplay(done);
}

}  // namespace fsdp
