// SPDX-License-Identifier: Apache-2.0
//
// Trace: the times at which named pieces of stream work ran. A span is opened and closed by marks put on a stream
// between other work, so it begins when all earlier work of the stream has run, and spans of one stream nest. Without a
// Trace nothing is put on any stream.
//
//   {
//     const TraceScope span(trace, *unshard_stream, [&] { return "all_gather " + unit.name; });
//     group.AllGather(shard, unsharded, *unshard_stream);
//   }
#ifndef FSDP_TENSOR_TRACE_H_
#define FSDP_TENSOR_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/tensor/stream.h"

namespace fsdp {

struct TraceSpan {
  std::string stream;  // Stream::name()
  std::string name;
  int64_t begin_ns = 0;  // since the Unix epoch, from a clock that never steps back
  int64_t end_ns = 0;
};

// Thread-safe. Must be owned by a shared_ptr: marks on streams share it.
class Trace : public std::enable_shared_from_this<Trace> {
 public:
  // Keeps at most `max_spans` spans, and leaves out further ones until TakeSpans has made room: memory is bounded.
  static std::shared_ptr<Trace> Create(int64_t max_spans = 200'000);

  // Begin opens a span on `stream`; End closes the one that was opened there last. Every Begin needs its End, and
  // `stream` must live until both marks have run. Neither blocks. A mark runs after an error of the stream too, and
  // passes that error on.
  void Begin(Stream& stream, std::string name);
  void End(Stream& stream);

  // The spans that have ended, each stream's in the order in which they ended. A copy: O(spans). Marks that have not
  // run yet are missing, so synchronize the streams first.
  std::vector<TraceSpan> Spans() const;

  // The same, and removes them, so that a run of any length can be examined piece by piece: the spans that have ended
  // since the last call. Their places count as free again.
  std::vector<TraceSpan> TakeSpans();

  // True when spans were left out.
  bool full() const;

 private:
  // Not public, so that every Trace has a shared_ptr.
  explicit Trace(int64_t max_spans);
  // Nanoseconds since the Unix epoch, by the steady clock.
  int64_t Now() const;

  const int64_t max_spans_;
  const int64_t epoch_ns_;  // what to add to the steady clock
  mutable std::mutex mutex_;
  std::vector<TraceSpan> spans_;
  std::map<const Stream*, std::vector<TraceSpan>> open_;
  bool full_ = false;
};

// A span as long as this object lives, in stream order. `trace` may be null; then `name`, a function, is not called.
class TraceScope {
 public:
  template <typename Name>
  TraceScope(Trace* trace, Stream& stream, const Name& name) : trace_(trace), stream_(stream) {
    if (trace_ != nullptr) trace_->Begin(stream_, name());
  }
  ~TraceScope() {
    if (trace_ != nullptr) trace_->End(stream_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* const trace_;
  Stream& stream_;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_TRACE_H_
