// SPDX-License-Identifier: Apache-2.0
//
// The emulator's cudaStream_t and cudaEvent_t. A stream is a thread that processes a queue, so work of two streams
// really overlaps, and a missing wait is a data race that ThreadSanitizer reports. Priorities are stored and have no
// effect.
#ifndef FSDP_CUDA_EMULATOR_EMULATED_STREAM_H_
#define FSDP_CUDA_EMULATOR_EMULATED_STREAM_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "fsdp/cuda/emulator/graph.h"

struct CUstream_st {
 public:
  // Starts the thread.
  CUstream_st(int device, int priority);
  ~CUstream_st();  // after all work

  // The GPU and the priority of the stream.
  int device() const { return device_; }
  int priority() const { return priority_; }
  // Runs `work` on the stream's thread, after all earlier work on the stream; while capturing, adds it to the graph.
  void Push(std::function<void()> work);

  // Only while its work is captured, and by the thread that captures.
  bool capturing() const { return point_.capture != nullptr; }
  const CapturePoint& capture_point() const { return point_; }
  void Join(const CapturePoint& point);  // later work comes after `point` too
  // The capture has ended: work runs again.
  void LeaveCapture() { point_ = {}; }

  // Synchronize blocks until all work has run. Query returns whether all work has run, and does not block.
  void Synchronize();
  bool Query();

 private:
  // The thread: runs the queue in order until the stream closes and the queue is empty.
  void Loop();

  const int device_;
  const int priority_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_; the first one is running
  bool closing_ = false;                     // guarded by mutex_
  CapturePoint point_;                       // has no capture while the stream is not captured
  std::thread thread_;
};

// An event may be recorded many times, so it counts records; emulated_stream.cc explains the counts. Thread-safe,
// except for captures.
struct CUevent_st {
 public:
  // `timed`: whether cudaEventElapsedTime may be called.
  explicit CUevent_st(bool timed) : state_(std::make_shared<State>()), timed_(timed) {}

  // Puts a record on the stream; it replaces the previous one.
  void Record(CUstream_st& stream);
  // A record as a node of the graph that `stream` captures: each launch of the graph makes a record, which is reached
  // when the node runs. The capture does not own the event: the host may wait for it.
  void RecordInGraph(CUstream_st& stream);
  // A wait as such a node: for the last record before the launch.
  void WaitInGraph(CUstream_st& stream);
  // Puts a wait on the stream; does not block the caller.
  void MakeWait(CUstream_st& stream);  // for the last Record before this call

  // The point at which a capture last recorded it; without a capture if none did.
  const CapturePoint& captured() const { return captured_; }
  // Synchronize and Query are about the last Record before the call, on any stream; an event that was never recorded
  // counts as reached.
  void Synchronize();
  bool Query();
  // False for cudaEventDisableTiming.
  bool timed() const { return timed_; }
  // When a stream last reached a record, by the steady clock. For a timed event.
  std::chrono::steady_clock::time_point reached_at();

 private:
  // Outlives the event while streams use it.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t recorded = 0;  // the number of records
    int64_t reached = 0;   // the last record that was reached
    std::chrono::steady_clock::time_point reached_at;
    // The number of a new record.
    int64_t AddRecord();
    // The record of this number is reached.
    void Reach(int64_t record);
    // Blocks until the record of this number was reached.
    void Await(int64_t record);
  };

  // Shared with the work on streams that records the event or waits for it.
  const std::shared_ptr<State> state_;
  const bool timed_;
  // Used by the thread that captures.
  CapturePoint captured_;
};

#endif  // FSDP_CUDA_EMULATOR_EMULATED_STREAM_H_
