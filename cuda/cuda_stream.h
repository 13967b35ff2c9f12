// SPDX-License-Identifier: Apache-2.0
//
// CudaStream: a stream of the CUDA device. The calling thread puts kernels and copies on a CUDA stream immediately.
// Host work (Run, RunAlways) runs on a thread of the stream, after the GPU has done all earlier work; work that is put
// on the stream meanwhile is deferred, and that thread issues it afterwards, in order:
//
//   caller:  kernel  Run  kernel  kernel  Record      kernel
//              |      \-----\-------\-------\-----.      |     once the queue is empty, direct again
//   thread:    |       waits for the GPU, runs host work, then issues kernel, kernel, event
//   GPU:     kernel........................idle......kernel kernel event kernel
//
// So the GPU never waits for the host inside its own queues: streams share hardware queues, and a rank's barrier that
// blocked one could block the very rank for which it waits. Skipping work after an error is exact, because errors arise
// in host work, after which nothing was issued, or in issuing itself. (An error of the GPU itself, such as an illegal
// address, ends the process's use of it: every later call fails with it.)
//
// While its work is captured (cuda_graph.h) nothing runs: kernels, copies and events go into the graph, and work that
// cannot be captured is an error of the capture, not of the stream.
//
// Buffers that work uses are held until a CUDA event after that work is reached: in batches, so that a small kernel
// does not pay for an event. Buffers of AllocateInOrder belong to the stream and are not held: they are freed in its
// order. After Synchronize nothing is held.
#ifndef FSDP_CUDA_CUDA_STREAM_H_
#define FSDP_CUDA_CUDA_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/cuda/cuda_recording.h"
#include "fsdp/cuda/kernel_failure.h"
#include "fsdp/cuda/stream_memory.h"
#include "fsdp/tensor/async_failure.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/ordered_memory.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/stream_priority.h"
#include "fsdp/tensor/work_graph.h"

// CUDA's, so that its headers need not be included here.
struct CUevent_st;
struct CUgraph_st;
struct CUstream_st;

namespace fsdp {

class CudaEvent;

class CudaStream final : public Stream, public GraphStream, public OrderedMemory {
 public:
  // Puts work on a cudaStream_t, with its device current. Called at most once, and not after an error of the stream. It
  // must not use the CudaStream.
  using Launch = std::function<absl::Status(CUstream_st* stream)>;

  // Device memory that work on this stream may use for its own intermediate values; see scratch().
  static constexpr int64_t kScratchBytes = 16 << 10;

  // On GPU `ordinal`, the GPU of `device` and `memory`. kResourceExhausted if a thread or memory cannot be had; other
  // errors as CudaStatus. Linux cuts the name of the thread to 15 bytes.
  static absl::StatusOr<std::unique_ptr<Stream>> Create(std::shared_ptr<Device> device,
                                                        std::shared_ptr<CudaMemory> memory, int ordinal,
                                                        std::string name, StreamPriority priority);

  // Waits for all work. Must not be called from host work of this stream.
  ~CudaStream() override;

  // `stream` as a CudaStream. REQUIRES: it belongs to a CUDA device.
  static CudaStream& Of(Stream& stream);

  Device& device() const override { return *device_; }
  std::string_view name() const override { return name_; }
  void Run(std::function<absl::Status()> work) override;
  void RunAlways(std::function<absl::Status(const absl::Status& so_far)> work) override;
  void CopyAsync(void* destination, const void* source, int64_t nbytes) override;
  Event Record() override;
  void Wait(const Event& event) override;
  absl::Status Synchronize() override;
  bool capturing() const override { return recording_ != nullptr; }
  Event RecordForHost() override;
  absl::StatusOr<Buffer> AllocateInOrder(int64_t nbytes) override { return memory_->Allocate(nbytes); }

  // Runs a kernel: calls `launch` in stream order, on the calling thread unless host work is pending, and holds `uses`
  // until the work has run on the GPU.
  void Issue(std::vector<Buffer> uses, Launch launch);

  // Watches `failure`, a possible error of the work that is put on this stream next; later work computes garbage until
  // the stream is synchronized.
  void Watch(std::shared_ptr<const AsyncFailure> failure);

  // For CudaGraph. Until EndCapture, work on this stream, and on streams that wait for it, is captured. REQUIRES: no
  // work is pending.
  absl::Status BeginCapture(std::shared_ptr<CudaRecording> recording);
  absl::StatusOr<CUgraph_st*> EndCapture();

  // The recording that this stream's work is part of; null while it is not captured.
  const std::shared_ptr<CudaRecording>& recording() const { return recording_; }

  // The device's number.
  int ordinal() const { return ordinal_; }

  // kScratchBytes of device memory, aligned to 256 bytes, contents unspecified. Its users follow each other in stream
  // order.
  void* scratch() const { return scratch_; }

  // Device memory of at least `nbytes` for data between the kernels of one call; kept, and reused by every such call,
  // in stream order. Like any buffer it must be among the `uses` of the work.
  absl::StatusOr<Buffer> Workspace(int64_t nbytes);

  // Kernels on this stream report an operand's value that is out of range through this object, which the stream
  // watches. Created on first use.
  absl::StatusOr<std::shared_ptr<KernelFailure>> kernel_failure();

 private:
  struct Item {
    std::function<void()> work;
    bool in_order = false;  // part of the stream's order: later work must queue behind it
  };

  CudaStream(std::shared_ptr<Device> device, int ordinal, std::string name);

  // Creates the CUDA objects and starts the thread.
  absl::Status Open(std::shared_ptr<CudaMemory> memory, StreamPriority priority);

  // For a stream whose work is captured, or is about to be (cuda_stream_capture.cc). Failures go to the recording.
  void RefuseToCapture(std::string_view what);
  void CaptureWork(std::vector<Buffer> uses, const Launch& launch);
  void CaptureWait(const Event& event, CudaEvent* cuda_event);

  // Calls `step` now if nothing that it must follow is pending, else on the thread.
  template <typename Step>
  void InOrder(Step step);
  // Passes an item to the thread. Loop is the thread: it takes items in order until the stream closes.
  void Push(Item item);
  void Loop();

  // The following are for the side that may act: the thread while in_order_ is positive, else the caller.

  void Note(const absl::Status& status);  // records a new error, with this stream's name
  void Hold(std::vector<Buffer> uses);
  void Seal();               // arranges the release of held_ when the GPU has reached this point
  absl::Status AwaitGpu();   // blocks, without spinning, until the GPU has done all issued work
  void MakeCurrent() const;  // each thread has its own current device

  const std::shared_ptr<Device> device_;
  const int ordinal_;
  const std::string name_;
  CUstream_st* stream_ = nullptr;
  std::shared_ptr<StreamMemory> memory_;
  CUevent_st* drained_ = nullptr;  // for AwaitGpu
  void* scratch_ = nullptr;
  Buffer workspace_;                               // used by the caller; see Workspace
  std::shared_ptr<KernelFailure> kernel_failure_;  // used by the caller; null until requested

  absl::Status status_;       // the first error
  AsyncFailures failures_;    // possible failures of issued work
  std::vector<Buffer> held_;  // used by work issued since the last Seal

  std::shared_ptr<CudaRecording> recording_;  // used by the caller; null while work runs

  std::atomic<int> in_order_{0};  // items with in_order that were pushed and have not ended

  std::mutex mutex_;
  std::condition_variable wake_;  // the thread: there is an item, or closing_
  std::condition_variable idle_;  // the queue is empty and the thread waits
  std::deque<Item> queue_;        // guarded by mutex_
  bool busy_ = false;             // guarded by mutex_; the thread works on an item
  bool closing_ = false;          // guarded by mutex_
  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_STREAM_H_
