// SPDX-License-Identifier: Apache-2.0

#include "fsdp/cuda/emulator/stream.h"

#include <algorithm>
#include <utility>

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

void CUevent_st::Record(CUstream_st& stream) {
  if (stream.capturing() || captured_.capture != nullptr) captured_ = stream.capture_point();
  if (stream.capturing()) return;
  int64_t record;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    record = ++state_->recorded;
  }
  stream.Push([state = state_, record] {
    {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->reached = std::max(state->reached, record);
      state->reached_at = std::chrono::steady_clock::now();
    }
    state->changed.notify_all();
  });
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
