// SPDX-License-Identifier: Apache-2.0

#include "cuda/cuda_stream.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cuda/cuda_event.h"
#include "cuda/cuda_status.h"

namespace fsdp {
namespace {

// Linux refuses longer thread names.
constexpr size_t kMaxThreadName = 15;

// Buffers that are let go of together: an event, and waking the thread, for each so many.
constexpr size_t kHeldTogether = 64;

constexpr unsigned kBlockingEvent = cudaEventDisableTiming | cudaEventBlockingSync;

absl::Status OnStream(const absl::Status& status, const std::string& name) {
  absl::Status named(status.code(), absl::StrCat("stream \"", name, "\": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> CudaStream::Create(std::shared_ptr<Device> device, int ordinal,
                                                           std::string name) {
  std::unique_ptr<CudaStream> stream(new CudaStream(std::move(device), ordinal, std::move(name)));
  if (absl::Status status = stream->Open(); !status.ok()) return OnStream(status, stream->name_);
  return stream;
}

CudaStream::CudaStream(std::shared_ptr<Device> device, int ordinal, std::string name)
    : device_(std::move(device)), ordinal_(ordinal), name_(std::move(name)) {}

absl::Status CudaStream::Open() {
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice", ordinal_));
  // Non-blocking: it does not order itself after the default stream, which nothing here uses.
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", ordinal_));
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&drained_, kBlockingEvent), "cudaEventCreate", ordinal_));
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&scratch_, kScratchBytes), "cudaMalloc", ordinal_));
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
  InOrder([this, uses = std::move(uses), launch = std::move(launch)]() mutable {
    if (!status_.ok()) return;
    MakeCurrent();
    Note(launch(stream_));
    Hold(std::move(uses));
  });
}

void CudaStream::CopyAsync(void* destination, const void* source, int64_t nbytes) {
  InOrder([this, destination, source, nbytes] {
    if (!status_.ok() || nbytes == 0) return;
    MakeCurrent();
    Note(CudaStatus(cudaMemcpyAsync(destination, source, nbytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync",
                    ordinal_));
  });
}

void CudaStream::Run(std::function<absl::Status()> work) {
  Check(work != nullptr, "empty work on a stream");
  RunAlways([work = std::move(work)](const absl::Status& so_far) { return so_far.ok() ? work() : so_far; });
}

void CudaStream::RunAlways(std::function<absl::Status(const absl::Status& so_far)> work) {
  Check(work != nullptr, "empty work on a stream");
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
  InOrder([this, event = *event] {
    MakeCurrent();
    Seal();
    event->RecordOn(stream_, status_, failures_);
  });
  return Event(*std::move(event));
}

void CudaStream::Wait(const Event& event) {
  if (event.state() == nullptr) return;
  auto cuda_event = std::dynamic_pointer_cast<CudaEvent>(event.state());
  // An event's error already says on which stream it arose.
  auto step = [this, event, cuda_event] {
    MakeCurrent();
    const absl::Status status = cuda_event ? cuda_event->MakeWait(stream_, ordinal_) : event.Synchronize();
    if (status_.ok()) status_ = status;
    if (cuda_event) AddFailures(cuda_event->failures(), failures_);
  };
  // The caller must not be blocked by an event that its stream has not recorded yet, or by one of the host.
  const bool blocks = cuda_event ? !cuda_event->recorded() : !event.Query();
  if (blocks) {
    Push({.work = std::move(step), .in_order = true});
  } else {
    InOrder(std::move(step));
  }
}

absl::Status CudaStream::Synchronize() {
  InOrder([this] { Seal(); });
  {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  // Now this thread may act.
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
    workspace_ = Buffer();
    ASSIGN_OR_RETURN(workspace_, device_->Allocate(nbytes));
  }
  return workspace_;
}

absl::StatusOr<std::shared_ptr<KernelFailure>> CudaStream::kernel_failure() {
  if (kernel_failure_ == nullptr) {
    ASSIGN_OR_RETURN(kernel_failure_, KernelFailure::Create(*device_));
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
  pthread_setname_np(pthread_self(), name_.substr(0, kMaxThreadName).c_str());
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
    item.work = nullptr;  // lets go of what the work holds before anything that comes after it
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
  for (Buffer& use : uses) held_.push_back(std::move(use));
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
    // Without an event, all that was issued is waited for. What this returns, after an error of the GPU, the stream's
    // next call returns too.
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
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(drained_, stream_), "cudaEventRecord", ordinal_));
  RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(drained_), "cudaEventSynchronize", ordinal_));
  return FirstFailure(failures_);
}

void CudaStream::MakeCurrent() const {
  cudaSetDevice(ordinal_);
  cudaGetLastError();  // what failed here fails again in the call that needs the device
}

}  // namespace fsdp
