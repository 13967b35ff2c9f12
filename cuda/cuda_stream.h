// SPDX-License-Identifier: Apache-2.0
//
// CudaStream: a stream of the CUDA device. Kernels and copies are put on a CUDA stream by the calling thread, at once.
// Host work (Run, RunAlways) is run by a thread of the stream, when the GPU has done all before it; what is put on the
// stream meanwhile is put off, and that thread issues it afterwards, in order:
//
//   caller:  kernel  Run  kernel  kernel  Record      kernel
//              |      \-----\-------\-------\-----.      |     once the queue is empty, direct again
//   thread:    |       waits for the GPU, runs host work, then issues kernel, kernel, event
//   GPU:     kernel........................idle......kernel kernel event kernel
//
// So the GPU never waits for the host inside its own queues: streams share hardware queues, and a rank's barrier that
// held one up could stop the very rank that it waits for. And skipping work after an error is exact, as errors arise in
// host work, after which nothing was issued, or in issuing itself. (An error of the GPU itself, such as an illegal
// address, ends the process's use of it: every later call fails with it.)
//
// While its work is captured (cuda_graph.h) nothing runs: kernels, copies and events go into the graph, and what the
// graph cannot have is the capture's error, not the stream's.
//
// Buffers that work uses are held until a CUDA event after that work is reached: in batches, so that a small kernel
// does not pay for an event. Those of AllocateInOrder are the stream's own and are not held: they are freed in its
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

  // On GPU `ordinal`, which is that of `device`, as is `memory`. kResourceExhausted if there is no thread or no memory
  // left; other errors are those of CudaStatus. Linux cuts the name of the thread to 15 bytes.
  static absl::StatusOr<std::unique_ptr<Stream>> Create(std::shared_ptr<Device> device,
                                                        std::shared_ptr<CudaMemory> memory, int ordinal,
                                                        std::string name, StreamPriority priority);

  // Waits for all work. Not from host work of this very stream.
  ~CudaStream() override;

  // `stream`, which must be one of a CUDA device.
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
  absl::StatusOr<Buffer> AllocateInOrder(int64_t nbytes) override { return memory_->Allocate(nbytes); }

  // How a kernel runs: calls `launch` in stream order, on the calling thread unless host work is pending, and holds
  // `uses` until the work has run on the GPU.
  void Issue(std::vector<Buffer> uses, Launch launch);

  // Watches `failure`, which the work that is put on this stream next may end with; what follows such work computes
  // garbage until the stream is waited for.
  void Watch(std::shared_ptr<const AsyncFailure> failure);

  // For CudaGraph. Until EndCapture what is put on this stream, and on streams that wait for it, is captured.
  // Precondition: nothing is pending.
  absl::Status BeginCapture(std::shared_ptr<CudaRecording> recording);
  absl::StatusOr<CUgraph_st*> EndCapture();

  // The recording that this stream's work is part of; null while it is not captured.
  const std::shared_ptr<CudaRecording>& recording() const { return recording_; }

  // The device's number.
  int ordinal() const { return ordinal_; }

  // kScratchBytes of device memory, aligned to 256 bytes, contents unspecified. Its users follow each other in stream
  // order.
  void* scratch() const { return scratch_; }

  // Device memory of at least `nbytes` for what one call's kernels pass to each other; kept, and used by every such
  // call, in stream order. Like any buffer it must be among the `uses` of the work.
  absl::StatusOr<Buffer> Workspace(int64_t nbytes);

  // Where kernels on this stream report an operand's value that is out of range; the stream watches it. Made on first
  // use.
  absl::StatusOr<std::shared_ptr<KernelFailure>> kernel_failure();

 private:
  struct Item {
    std::function<void()> work;
    bool in_order = false;  // part of the stream's order, so that what comes later must queue behind it
  };

  CudaStream(std::shared_ptr<Device> device, int ordinal, std::string name);

  // Makes the CUDA objects and starts the thread.
  absl::Status Open(std::shared_ptr<CudaMemory> memory, StreamPriority priority);

  // For a stream whose work is captured, or is about to be (cuda_stream_capture.cc). Failures go to the recording.
  void RefuseToCapture(std::string_view what);
  void CaptureWork(std::vector<Buffer> uses, const Launch& launch);
  void CaptureWait(const Event& event, CudaEvent* cuda_event);

  // Calls `step` now if nothing that it must follow is pending, else on the thread.
  template <typename Step>
  void InOrder(Step step);
  // Gives an item to the thread. Loop is the thread: it takes items in order until the stream closes.
  void Push(Item item);
  void Loop();

  // The following are for the side whose turn it is: the thread while in_order_ is positive, else the caller.

  void Note(const absl::Status& status);  // a new error, to be named after this stream
  void Hold(std::vector<Buffer> uses);
  void Seal();               // sees to it that held_ is let go of when the GPU gets here
  absl::Status AwaitGpu();   // blocks, without spinning, until the GPU has done what was issued
  void MakeCurrent() const;  // every thread has a current device of its own

  const std::shared_ptr<Device> device_;
  const int ordinal_;
  const std::string name_;
  CUstream_st* stream_ = nullptr;
  std::shared_ptr<StreamMemory> memory_;
  CUevent_st* drained_ = nullptr;  // AwaitGpu's
  void* scratch_ = nullptr;
  Buffer workspace_;                               // the caller's; see Workspace
  std::shared_ptr<KernelFailure> kernel_failure_;  // the caller's; null until asked for

  absl::Status status_;       // the first error
  AsyncFailures failures_;    // what work that was issued may still fail with
  std::vector<Buffer> held_;  // used by work issued since the last Seal

  std::shared_ptr<CudaRecording> recording_;  // the caller's; null while work runs

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
