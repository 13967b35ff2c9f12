// SPDX-License-Identifier: Apache-2.0
//
// Streams, events, and the functions of include/cuda_runtime_api.h on them.
//
// An event may be recorded again and again, so it counts: `recorded` is incremented on the host when the record is put
// on a stream, and `reached` follows when the stream reaches it. A wait stores the current count and waits until
// `reached` gets to it, so a later record does not affect the wait, as CUDA specifies.
//
// A call that cannot be captured (waiting by the host, another capture's event) on a captured stream invalidates the
// capture, with CUDA's error codes.

#include "fsdp/cuda/emulator/emulated_stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "fsdp/cuda/emulator/runtime.h"

CUstream_st::CUstream_st(int device, int priority)
    : device_(device), priority_(priority), thread_([this] { Loop(); }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// While the stream is captured, work becomes a node, after all nodes of the stream's point; that node is the new point.
void CUstream_st::Push(std::function<void()> work) {
  if (capturing()) {
    point_.after = {point_.capture->Add(std::move(work), point_.lane, point_.after)};
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void CUstream_st::Join(const CapturePoint& point) {
  if (!capturing()) {
    point_ = {point.capture, point.capture->streams.size(), {}};
    point.capture->streams.push_back(this);
  }
  point_.after.insert(point.after.begin(), point.after.end());
}

// The queue's first item is removed only when it is done, so an empty queue means that nothing is running.
void CUstream_st::Synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty(); });
}

bool CUstream_st::Query() {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty();
}

void CUstream_st::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    lock.unlock();
    work();
    // Destroyed without the lock and before Synchronize can return: it may hold the caller's memory.
    work = nullptr;
    lock.lock();
    queue_.pop_front();
    if (queue_.empty()) changed_.notify_all();
  }
}

void CUevent_st::State::Await(int64_t record) {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return reached >= record; });
}

int64_t CUevent_st::State::AddRecord() {
  const std::lock_guard<std::mutex> lock(mutex);
  return ++recorded;
}

void CUevent_st::State::Reach(int64_t record) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    // std::max, because records on two streams may be reached in either order.
    reached = std::max(reached, record);
    reached_at = std::chrono::steady_clock::now();
  }
  changed.notify_all();
}

// In a capture the event only stores the point. A later record outside of a capture clears the point.
void CUevent_st::Record(CUstream_st& stream) {
  if (stream.capturing() || captured_.capture != nullptr) captured_ = stream.capture_point();
  if (stream.capturing()) return;
  stream.Push([state = state_, record = state_->AddRecord()] { state->Reach(record); });
}

namespace {

// The records of an event that the launches of a graph, whose node has not run, made or wait for. Launches of a graph
// run in their order.
class LaunchedRecords {
 public:
  void Push(int64_t record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.push_back(record);
  }
  int64_t Pop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t record = records_.front();
    records_.pop_front();
    return record;
  }

 private:
  std::mutex mutex_;
  std::deque<int64_t> records_;  // guarded by mutex_
};

}  // namespace

void CUevent_st::RecordInGraph(CUstream_st& stream) {
  const auto launched = std::make_shared<LaunchedRecords>();
  stream.Push([state = state_, launched] { state->Reach(launched->Pop()); });
  stream.capture_point().capture->nodes.back().launched = [state = state_, launched] {
    launched->Push(state->AddRecord());
  };
}

void CUevent_st::WaitInGraph(CUstream_st& stream) {
  const auto launched = std::make_shared<LaunchedRecords>();
  stream.Push([state = state_, launched] { state->Await(launched->Pop()); });
  stream.capture_point().capture->nodes.back().launched = [state = state_, launched] {
    int64_t last;
    {
      const std::lock_guard<std::mutex> lock(state->mutex);
      last = state->recorded;
    }
    launched->Push(last);
  };
}

void CUevent_st::MakeWait(CUstream_st& stream) {
  int64_t record;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    record = state_->recorded;
  }
  stream.Push([state = state_, record] { state->Await(record); });
}

void CUevent_st::Synchronize() {
  int64_t record;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    record = state_->recorded;
  }
  state_->Await(record);
}

bool CUevent_st::Query() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->reached >= state_->recorded;
}

std::chrono::steady_clock::time_point CUevent_st::reached_at() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->reached_at;
}

namespace {

constexpr int kGreatestPriority = -5;

// All live streams, for cudaDeviceSynchronize.
std::mutex streams_mutex;
std::set<cudaStream_t>& Streams() {
  static auto* const streams = new std::set<cudaStream_t>;
  return *streams;
}

}  // namespace

using fsdp::Answer;
using fsdp::RefuseToCapture;

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = kGreatestPriority;
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (const cudaError_t error = Answer(cudaSuccess); error != cudaSuccess) return error;
  *stream = new CUstream_st(fsdp::EmulatedCurrentDevice(), std::clamp(priority, kGreatestPriority, 0));
  std::lock_guard<std::mutex> lock(streams_mutex);
  Streams().insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  *priority = stream->priority();
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    Streams().erase(stream);
  }
  delete stream;
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (stream->capturing()) return RefuseToCapture(*stream, cudaErrorStreamCaptureUnsupported);
  stream->Synchronize();
  return Answer(fsdp::EmulatedDeviceError(stream->device()));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (stream->capturing()) return RefuseToCapture(*stream, cudaErrorStreamCaptureUnsupported);
  return Answer(stream->Query() ? cudaSuccess : cudaErrorNotReady);
}

// The four cases of CUDA: neither is captured; only the stream is (isolation); only the event is (the stream joins);
// both are (one capture, or a merge, which is refused).
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (stream == nullptr || event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (flags == cudaEventWaitExternal) {
    if (!stream->capturing()) return Answer(cudaErrorInvalidValue);
    event->WaitInGraph(*stream);
    return Answer(cudaSuccess);
  }
  const CapturePoint& captured = event->captured();
  if (captured.capture == nullptr && !stream->capturing()) {
    event->MakeWait(*stream);
    return Answer(cudaSuccess);
  }
  if (captured.capture == nullptr) return RefuseToCapture(*stream, cudaErrorStreamCaptureIsolation);
  if (captured.capture->ended) return Answer(cudaErrorCapturedEvent);
  if (stream->capturing() && stream->capture_point().capture != captured.capture) {
    return RefuseToCapture(*stream, cudaErrorStreamCaptureMerge);
  }
  stream->Join(captured);
  return Answer(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  stream->Push([function, argument] { function(argument); });
  return Answer(cudaSuccess);
}

// Streams must not be destroyed meanwhile, as in CUDA.
cudaError_t cudaDeviceSynchronize() {
  std::vector<cudaStream_t> streams;
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    streams.assign(Streams().begin(), Streams().end());
  }
  // A copy of the set: Synchronize blocks, and other threads may create streams meanwhile.
  for (const cudaStream_t stream : streams) {
    if (stream->device() == fsdp::EmulatedCurrentDevice()) stream->Synchronize();
  }
  return Answer(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = Answer(cudaSuccess); error != cudaSuccess) return error;
  *event = new CUevent_st((flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return Answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == nullptr || event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  event->Record(*stream);
  return Answer(cudaSuccess);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags != cudaEventRecordExternal) return cudaEventRecord(event, stream);
  if (stream == nullptr || event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (!stream->capturing()) return Answer(cudaErrorInvalidValue);
  event->RecordInGraph(*stream);
  return Answer(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (event->captured().capture != nullptr) return Answer(cudaErrorCapturedEvent);
  event->Synchronize();
  return Answer(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (event->captured().capture != nullptr) return Answer(cudaErrorCapturedEvent);
  return Answer(event->Query() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (begin == nullptr || end == nullptr || !begin->timed() || !end->timed()) {
    return Answer(cudaErrorInvalidResourceHandle);
  }
  if (!begin->Query() || !end->Query()) return Answer(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->reached_at() - begin->reached_at()).count();
  return Answer(cudaSuccess);
}
