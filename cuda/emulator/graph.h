// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cudaGraph_t and cudaGraphExec_t, and a capture that is under way (graph.cc has a picture). Each
// captured stream becomes a lane of the graph. A launch runs the lanes on threads of their own, so the only order among
// them is the one that events were captured for: a missing event is a data race that ThreadSanitizer reports, as it is
// between streams.
#ifndef FSDP_CUDA_EMULATOR_GRAPH_H_
#define FSDP_CUDA_EMULATOR_GRAPH_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

struct CUstream_st;

// One captured kernel, copy or the like.
struct GraphNode {
  std::function<void()> work;
  size_t lane;
  std::set<size_t> after;  // nodes
};

// Nodes in the order of the capture, which is an order that respects `after`.
struct CUgraph_st {
  std::vector<GraphNode> nodes;
  size_t lanes;
};

// A copy of the graph, so that the graph may be destroyed.
struct CUgraphExec_st {
  explicit CUgraphExec_st(const CUgraph_st& of) : graph(of) {}

  void Run();  // one at a time, as on a GPU

  const CUgraph_st graph;
  std::mutex mutex;
};

// From cudaStreamBeginCapture to cudaStreamEndCapture, by one thread.
struct CaptureUnderWay {
  std::vector<GraphNode> nodes;
  std::vector<CUstream_st*> streams;  // by lane; the first is where it began
  bool invalid = false;               // something was called that cannot be captured
  bool ended = false;

  // Returns the number of the new node.
  size_t Add(std::function<void()> work, size_t lane, const std::set<size_t>& after);

  // True when the first lane comes after all others.
  bool IsJoined() const;
};

// A point in a lane: what comes next comes after these nodes.
struct CapturePoint {
  std::shared_ptr<CaptureUnderWay> capture;
  size_t lane = 0;
  std::set<size_t> after;
};

#endif  // FSDP_CUDA_EMULATOR_GRAPH_H_
