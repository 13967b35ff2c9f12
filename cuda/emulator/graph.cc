// SPDX-License-Identifier: Apache-2.0
//
// A captured graph and the functions of include/cuda_runtime_api.h on graphs. Capturing: each piece of work that is put
// on a captured stream becomes a node after the stream's current point. Recording an event stores the point, and
// waiting for it merges two points, by which another stream joins as a further lane.
//
//   origin  n0 --- n1 -------- n4        point of origin: {n4}
//             \             /           n4.after = {n1, n3}
//   other      `-- n2 --- n3             lane 1
//
// Running: a thread for each lane runs the lane's nodes in order, and waits for the nodes of other lanes before a node
// that follows them.
#include "fsdp/cuda/emulator/graph.h"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <memory>
#include <thread>
#include <utility>

#include "fsdp/cuda/emulator/emulated_stream.h"
#include "fsdp/cuda/emulator/runtime.h"

size_t CaptureUnderWay::Add(std::function<void()> work, size_t lane, const std::set<size_t>& after) {
  nodes.push_back({std::move(work), lane, after, nullptr});
  return nodes.size() - 1;
}

bool CaptureUnderWay::IsJoined() const {
  std::set<size_t> reached = streams[0]->capture_point().after;
  // Backwards, because nodes come after earlier nodes only: afterwards `reached` has all predecessors of the first
  // lane.
  for (size_t i = nodes.size(); i-- > 0;) {
    if (reached.count(i) > 0) reached.insert(nodes[i].after.begin(), nodes[i].after.end());
  }
  for (const CUstream_st* stream : streams) {
    for (const size_t node : stream->capture_point().after) {
      if (reached.count(node) == 0) return false;
    }
  }
  return true;
}

void CUgraphExec_st::Run() {
  const std::lock_guard<std::mutex> one_at_a_time(mutex);
  std::mutex done_mutex;
  std::condition_variable changed;
  std::vector<bool> done(graph.nodes.size());  // guarded by done_mutex
  const auto run_lane = [&](size_t lane) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const GraphNode& node = graph.nodes[i];
      if (node.lane != lane) continue;
      {
        std::unique_lock<std::mutex> lock(done_mutex);
        changed.wait(lock, [&] {
          for (const size_t before : node.after) {
            if (!done[before]) return false;
          }
          return true;
        });
      }
      node.work();
      const std::lock_guard<std::mutex> lock(done_mutex);
      done[i] = true;
      changed.notify_all();
    }
  };
  std::vector<std::thread> threads;
  for (size_t lane = 1; lane < graph.lanes; ++lane) threads.emplace_back(run_lane, lane);
  run_lane(0);
  for (std::thread& thread : threads) thread.join();
}

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
  for (const GraphNode& node : exec->graph.nodes) {
    if (node.launched != nullptr) node.launched();
  }
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
