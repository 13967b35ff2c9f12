// SPDX-License-Identifier: Apache-2.0

#include "fsdp/cuda/emulator/graph.h"

#include <condition_variable>
#include <thread>
#include <utility>

#include "fsdp/cuda/emulator/stream.h"

size_t CaptureUnderWay::Add(std::function<void()> work, size_t lane, const std::set<size_t>& after) {
  nodes.push_back({std::move(work), lane, after});
  return nodes.size() - 1;
}

bool CaptureUnderWay::IsJoined() const {
  std::set<size_t> reached = streams[0]->capture_point().after;
  // Nodes come after earlier ones only.
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
