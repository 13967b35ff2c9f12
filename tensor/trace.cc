// SPDX-License-Identifier: Apache-2.0
//
// A mark is a piece of host work that reads the clock when the stream reaches it. Open spans are kept by stream, as a
// stack: End closes the innermost. One steady clock serves all streams, shifted once to the Unix epoch, so that the
// traces of several processes of one machine line up.
#include "fsdp/tensor/trace.h"

#include <chrono>
#include <utility>

#include "absl/status/status.h"

namespace fsdp {
namespace {

template <typename Clock>
int64_t NanosecondsOf() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

Trace::Trace(int64_t max_spans)
    : max_spans_(max_spans),
      epoch_ns_(NanosecondsOf<std::chrono::system_clock>() - NanosecondsOf<std::chrono::steady_clock>()) {}

std::shared_ptr<Trace> Trace::Create(int64_t max_spans) { return std::shared_ptr<Trace>(new Trace(max_spans)); }

int64_t Trace::Now() const { return epoch_ns_ + NanosecondsOf<std::chrono::steady_clock>(); }

void Trace::Begin(Stream& stream, std::string name) {
  // RunAlways, so that after an error every End still finds its Begin.
  stream.RunAlways([self = shared_from_this(), &stream, name = std::move(name)](const absl::Status& so_far) {
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->open_[&stream].push_back({std::string(stream.name()), name, self->Now(), 0});
    return so_far;
  });
}

void Trace::End(Stream& stream) {
  stream.RunAlways([self = shared_from_this(), &stream](const absl::Status& so_far) {
    std::lock_guard<std::mutex> lock(self->mutex_);
    std::vector<TraceSpan>& open = self->open_[&stream];
    if (open.empty()) return so_far;
    TraceSpan span = std::move(open.back());
    open.pop_back();
    span.end_ns = self->Now();
    if (static_cast<int64_t>(self->spans_.size()) < self->max_spans_) {
      self->spans_.push_back(std::move(span));
    } else {
      self->full_ = true;
    }
    return so_far;
  });
}

std::vector<TraceSpan> Trace::Spans() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return spans_;
}

std::vector<TraceSpan> Trace::TakeSpans() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(spans_, {});
}

bool Trace::full() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return full_;
}

}  // namespace fsdp
