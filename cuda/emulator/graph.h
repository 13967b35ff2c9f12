// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cudaGraph_t and cudaGraphExec_t, and a capture that is under way (graph.cc has a picture). Each
// captured stream becomes a lane of the graph. A launch runs each lane on its own thread, so only captured events order
// the lanes: a missing event is a data race that ThreadSanitizer reports, as between streams.
#ifndef FSDP_CUDA_EMULATOR_GRAPH_H_
#define FSDP_CUDA_EMULATOR_GRAPH_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

struct CUstream_st;

// A captured kernel, copy or other piece of work. It runs after the nodes whose numbers are in `after`.
struct GraphNode {
  // Runs on the thread of the lane.
  std::function<void()> work;
  size_t lane;
  std::set<size_t> after;  // nodes
  // Called by each launch, on the host; may be null.
  std::function<void()> launched;
};

// Nodes in the order of the capture, which is an order that respects `after`. Kernels, copies, sets and host functions
// are modelled as work that the graph repeats, and so are records of events, and waits, between the graph and other
// work. Not modelled: changing a graph, child graphs, nodes that allocate memory.
struct CUgraph_st {
  std::vector<GraphNode> nodes;
  // The number of streams that took part.
  size_t lanes;
};

// A copy of the graph, so that the graph may be destroyed.
struct CUgraphExec_st {
  explicit CUgraphExec_st(const CUgraph_st& of) : graph(of) {}

  // Blocks the calling thread, which runs lane 0, until every lane has ended.
  void Run();  // one at a time, as on a GPU

  const CUgraph_st graph;
  std::mutex mutex;
};

// From cudaStreamBeginCapture to cudaStreamEndCapture, by one thread. The streams that take part share it.
struct CaptureUnderWay {
  std::vector<GraphNode> nodes;
  std::vector<CUstream_st*> streams;  // by lane; the first is the stream on which it began
  bool invalid = false;               // a call was made that cannot be captured
  bool ended = false;

  // Returns the number of the new node.
  size_t Add(std::function<void()> work, size_t lane, const std::set<size_t>& after);

  // True if the first lane comes after all others. CUDA refuses to end a capture if not.
  bool IsJoined() const;
};

// A point in a lane: the next node comes after these nodes.
struct CapturePoint {
  std::shared_ptr<CaptureUnderWay> capture;
  size_t lane = 0;
  std::set<size_t> after;
};

#endif  // FSDP_CUDA_EMULATOR_GRAPH_H_
