// SPDX-License-Identifier: Apache-2.0
//
// The functions of include/cuda_runtime_api.h on graphs.

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "fsdp/cuda/emulator/graph.h"
#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/cuda/emulator/stream.h"

namespace fsdp {

cudaError_t RefuseToCapture(CUstream_st& stream, cudaError_t error) {
  stream.capture_point().capture->invalid = true;
  return Answer(error);
}

}  // namespace fsdp

using fsdp::Answer;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (stream->capturing() || mode != cudaStreamCaptureModeRelaxed) return Answer(cudaErrorInvalidValue);
  stream->Join({std::make_shared<CaptureUnderWay>(), 0, {}});
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr || !stream->capturing()) return Answer(cudaErrorInvalidValue);
  const std::shared_ptr<CaptureUnderWay> capture = stream->capture_point().capture;
  cudaError_t error = capture->invalid       ? cudaErrorStreamCaptureInvalidated
                      : !capture->IsJoined() ? cudaErrorStreamCaptureUnjoined
                                             : cudaSuccess;
  if (capture->streams[0] != stream) error = cudaErrorStreamCaptureUnmatched;
  capture->ended = true;
  for (CUstream_st* captured : capture->streams) captured->LeaveCapture();
  if (error == cudaSuccess) *graph = new CUgraph_st{std::move(capture->nodes), capture->streams.size()};
  return Answer(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  *status = !stream->capturing()                       ? cudaStreamCaptureStatusNone
            : stream->capture_point().capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                       : cudaStreamCaptureStatusActive;
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (graph == nullptr) return Answer(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st(*graph);
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec == nullptr || stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (stream->capturing()) return fsdp::RefuseToCapture(*stream, cudaErrorStreamCaptureUnsupported);
  stream->Push([exec] { exec->Run(); });
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return Answer(cudaSuccess);
}
