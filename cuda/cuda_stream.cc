// SPDX-License-Identifier: Apache-2.0
//
// The queue and the buffers of a stream; the picture is in cuda_stream.h. Two threads may act on the CUDA stream, the
// caller and the stream's own, and never at the same time:
//
//   in_order_ == 0   nothing that later work must follow is pending: the caller issues directly (InOrder)
//   in_order_ > 0    host work, a wait that blocks, or work behind either is pending: the caller only pushes, and the
//                    thread issues, item by item
//
// The caller increments in_order_ when it pushes; the thread decrements it, with release order, when the item is done;
// the caller's load has acquire order. So status_, failures_ and held_ need no lock: they belong to the side that may
// act. Items that are not in order (releasing buffers) wait for the GPU without holding up the caller.
//
// Buffers: an issued launch moves its buffers into held_, except buffers of memory_. After every 64 of them, and before
// each event, Seal records a CUDA event and pushes an item that waits for the event and drops them. Freeing from a host
// callback of CUDA would be simpler, but a callback must not call CUDA, and freeing device memory does.
//
// Errors: the first one stays in status_; later launches are skipped. An error on the GPU appears at the next wait for
// it (AwaitGpu, Synchronize), or as an AsyncFailure.

#include "fsdp/cuda/cuda_stream.h"

#include <cuda_runtime_api.h>

#include <system_error>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_name.h"
#include "fsdp/cuda/cuda_event.h"
#include "fsdp/cuda/cuda_status.h"

namespace fsdp {
namespace {

// Buffers that are released together, which costs one event and one wake-up of the thread.
constexpr size_t kHeldTogether = 64;

constexpr unsigned kBlockingEvent = cudaEventDisableTiming | cudaEventBlockingSync;

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> CudaStream::Create(std::shared_ptr<Device> device,
                                                           std::shared_ptr<CudaMemory> memory, int ordinal,
                                                           std::string name, StreamPriority priority) {
  std::unique_ptr<CudaStream> stream(new CudaStream(std::move(device), ordinal, std::move(name)));
  if (absl::Status status = stream->Open(std::move(memory), priority); !status.ok())
    return OnStream(status, stream->name_);
  return stream;
}

CudaStream::CudaStream(std::shared_ptr<Device> device, int ordinal, std::string name)
    : device_(std::move(device)), ordinal_(ordinal), name_(std::move(name)) {}

absl::Status CudaStream::Open(std::shared_ptr<CudaMemory> memory, StreamPriority priority) {
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal_));
  int lowest = 0, highest = 0;
  FSDP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange", ordinal_));
  // Non-blocking: not ordered after the default stream, which nothing here uses.
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                                               priority == StreamPriority::kHigh ? highest : lowest),
                                  "cudaStreamCreateWithPriority", ordinal_));
  memory_ = std::make_shared<StreamMemory>(std::move(memory), stream_);
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&drained_, kBlockingEvent), "cudaEventCreate", ordinal_));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&scratch_, kScratchBytes), "cudaMalloc", ordinal_));
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start its thread: ", error.what()));
  }
  return absl::OkStatus();
}

CudaStream::~CudaStream() {
  if (thread_.joinable()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  MakeCurrent();
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  held_.clear();
  if (memory_ != nullptr) memory_->Close();
  if (scratch_ != nullptr) cudaFree(scratch_);
  if (drained_ != nullptr) cudaEventDestroy(drained_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

CudaStream& CudaStream::Of(Stream& stream) {
  auto* cuda_stream = dynamic_cast<CudaStream*>(&stream);
  Check(cuda_stream != nullptr, "a CUDA kernel on a stream of another device");
  return *cuda_stream;
}

template <typename Step>
void CudaStream::InOrder(Step step) {
  if (in_order_.load(std::memory_order_acquire) == 0) {
    step();
  } else {
    Push({.work = std::move(step), .in_order = true});
  }
}

void CudaStream::Issue(std::vector<Buffer> uses, Launch launch) {
  Check(launch != nullptr, "empty work on a stream");
  if (capturing()) return CaptureWork(std::move(uses), launch);
  InOrder([this, uses = std::move(uses), launch = std::move(launch)]() mutable {
    if (!status_.ok()) return;
    MakeCurrent();
    Note(launch(stream_));
    Hold(std::move(uses));
  });
}

void CudaStream::CopyAsync(void* destination, const void* source, int64_t nbytes) {
  if (nbytes == 0) return;
  const auto copy = [destination, source, nbytes, ordinal = ordinal_](CUstream_st* stream) {
    return CudaStatus(cudaMemcpyAsync(destination, source, nbytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync",
                      ordinal);
  };
  if (capturing()) {
    return CaptureWork({Buffer::Unowned(destination, nbytes), Buffer::Unowned(const_cast<void*>(source), nbytes)},
                       copy);
  }
  InOrder([this, copy] {
    if (!status_.ok()) return;
    MakeCurrent();
    Note(copy(stream_));
  });
}

void CudaStream::Run(std::function<absl::Status()> work) {
  Check(work != nullptr, "empty work on a stream");
  RunAlways([work = std::move(work)](const absl::Status& so_far) { return so_far.ok() ? work() : so_far; });
}

void CudaStream::RunAlways(std::function<absl::Status(const absl::Status& so_far)> work) {
  Check(work != nullptr, "empty work on a stream");
  if (capturing()) return RefuseToCapture("host work cannot be captured");
  // Host work runs after the GPU has done all earlier work, so the buffers of earlier launches need not be held any
  // longer.
  auto step = [this, work = std::move(work)] {
    Note(AwaitGpu());
    held_.clear();
    Note(work(status_));
  };
  Push({.work = std::move(step), .in_order = true});
}

Event CudaStream::Record() {
  absl::StatusOr<std::shared_ptr<CudaEvent>> event = CudaEvent::Create(ordinal_);
  if (!event.ok()) {
    // There is nothing to wait for; the stream has the error.
    InOrder([this, status = event.status()] { Note(status); });
    return Event();
  }
  InOrder([this, event = *event, recording = recording_] {
    MakeCurrent();
    if (recording == nullptr) Seal();
    event->RecordOn(stream_, status_, failures_, recording);
  });
  return Event(*std::move(event));
}

void CudaStream::Wait(const Event& event) {
  if (event.state() == nullptr) return;
  auto cuda_event = std::dynamic_pointer_cast<CudaEvent>(event.state());
  if (cuda_event != nullptr && cuda_event->recorded() && cuda_event->recording() != nullptr) {
    if (!cuda_event->recording()->ended()) return CaptureWait(event, cuda_event.get());
    InOrder([this, cuda_event] { AddFailures(cuda_event->failures(), failures_); });
    return Wait(cuda_event->recording()->replayed());
  }
  if (capturing()) return CaptureWait(event, nullptr);
  // An event's error already names the stream on which it arose.
  auto step = [this, event, cuda_event] {
    MakeCurrent();
    const absl::Status status = cuda_event ? cuda_event->MakeWait(stream_, ordinal_) : event.Synchronize();
    if (status_.ok()) status_ = status;
    if (cuda_event) AddFailures(cuda_event->failures(), failures_);
  };
  // The caller must not be blocked by an event that its stream has not recorded yet, or by an event of the host.
  const bool blocks = cuda_event ? !cuda_event->recorded() : !event.Query();
  if (blocks) {
    Push({.work = std::move(step), .in_order = true});
  } else {
    InOrder(std::move(step));
  }
}

absl::Status CudaStream::Synchronize() {
  if (capturing()) {
    RefuseToCapture("cannot be waited for by the host while its work is captured");
    return recording_->status();
  }
  // After all pending work: when the queue is empty, everything has been issued.
  InOrder([this] { Seal(); });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  // The queue is empty, so this thread may act.
  MakeCurrent();
  Note(CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", ordinal_));
  Note(FirstFailure(failures_));
  held_.clear();
  return status_;
}

void CudaStream::Watch(std::shared_ptr<const AsyncFailure> failure) {
  InOrder([this, failure = std::move(failure)] { AddFailures({failure}, failures_); });
}

absl::StatusOr<Buffer> CudaStream::Workspace(int64_t nbytes) {
  if (workspace_.nbytes() < nbytes) {
    // Dropped first, so that the old and the new one are not allocated at the same time.
    workspace_ = Buffer();
    FSDP_ASSIGN_OR_RETURN(workspace_, device_->Allocate(nbytes));
  }
  return workspace_;
}

absl::StatusOr<std::shared_ptr<KernelFailure>> CudaStream::kernel_failure() {
  if (kernel_failure_ == nullptr) {
    FSDP_ASSIGN_OR_RETURN(kernel_failure_, KernelFailure::Create(*device_));
    Watch(kernel_failure_);
  }
  return kernel_failure_;
}

void CudaStream::Push(Item item) {
  if (item.in_order) in_order_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(item));
  }
  wake_.notify_one();
}

void CudaStream::Loop() {
  SetThreadName(name_);
  MakeCurrent();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    item.work();
    item.work = nullptr;  // releases the item's resources before any later item runs
    if (item.in_order) in_order_.fetch_sub(1, std::memory_order_release);
    lock.lock();
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

void CudaStream::Note(const absl::Status& status) {
  if (status_.ok() && !status.ok()) status_ = OnStream(status, name_);
}

void CudaStream::Hold(std::vector<Buffer> uses) {
  for (Buffer& use : uses) {
    if (use && !memory_->Contains(use.data())) held_.push_back(std::move(use));
  }
  if (held_.size() >= kHeldTogether) Seal();
}

void CudaStream::Seal() {
  if (held_.empty()) return;
  cudaEvent_t reached = nullptr;
  MakeCurrent();
  cudaError_t error = cudaEventCreateWithFlags(&reached, kBlockingEvent);
  if (error == cudaSuccess) error = cudaEventRecord(reached, stream_);
  Note(CudaStatus(error, "cudaEventRecord", ordinal_));
  auto release = [this, reached, error, held = std::move(held_)] {
    // Without an event, this waits for all issued work. An error of the GPU that these return is also returned by the
    // stream's next call.
    if (error == cudaSuccess) {
      cudaEventSynchronize(reached);
    } else {
      cudaStreamSynchronize(stream_);
    }
    if (reached != nullptr) cudaEventDestroy(reached);
    cudaGetLastError();
  };
  held_.clear();
  Push({.work = std::move(release)});
}

absl::Status CudaStream::AwaitGpu() {
  MakeCurrent();
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(drained_, stream_), "cudaEventRecord", ordinal_));
  FSDP_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(drained_), "cudaEventSynchronize", ordinal_));
  return FirstFailure(failures_);
}

void CudaStream::MakeCurrent() const {
  cudaSetDevice(ordinal_);
  cudaGetLastError();  // an error here occurs again in the call that needs the device
}

}  // namespace fsdp
