// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/hidden_share.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "fsdp/tensor/interval.h"

namespace fsdp {
namespace {

bool IsCollective(const TraceSpan& span) {
  const auto begins = [&](const char* word) { return span.name.rfind(word, 0) == 0; };
  return begins("all_gather") || begins("reduce_scatter") || begins("all_reduce");
}

// The times at which a span computes, without spans that contain another one of their stream, as disjoint intervals in
// order. Spans of a stream nest, so sorted by begin, the longer first, a span that contains others is followed by one
// of them.
std::vector<Interval> ComputeTimes(const std::vector<TraceSpan>& spans) {
  std::map<std::string, std::vector<Interval>> streams;
  for (const TraceSpan& span : spans) {
    if (!IsCollective(span)) streams[span.stream].push_back({span.begin_ns, span.end_ns});
  }
  std::vector<Interval> times;
  for (auto& [name, stream] : streams) {
    std::sort(stream.begin(), stream.end(), [](const Interval& a, const Interval& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    for (size_t i = 0; i < stream.size(); ++i) {
      const bool holds_next = i + 1 < stream.size() && stream[i + 1].begin < stream[i].end;
      if (!holds_next) times.push_back(stream[i]);
    }
  }
  std::sort(times.begin(), times.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> merged;
  for (const Interval& time : times) {
    if (!merged.empty() && time.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, time.end);
    } else {
      merged.push_back(time);
    }
  }
  return merged;
}

}  // namespace

std::optional<double> HiddenShare(const std::vector<TraceSpan>& spans) {
  const std::vector<Interval> compute = ComputeTimes(spans);
  int64_t total = 0;
  int64_t hidden = 0;
  for (const TraceSpan& span : spans) {
    if (!IsCollective(span)) continue;
    total += span.end_ns - span.begin_ns;
    const auto ends_before = [](const Interval& time, int64_t begin) { return time.end <= begin; };
    // The intervals are disjoint and in order, so their ends are in order too.
    auto time = std::lower_bound(compute.begin(), compute.end(), span.begin_ns, ends_before);
    for (; time != compute.end() && time->begin < span.end_ns; ++time) {
      hidden += std::min(span.end_ns, time->end) - std::max(span.begin_ns, time->begin);
    }
  }
  if (total <= 0) return std::nullopt;
  return static_cast<double>(hidden) / static_cast<double>(total);
}

}  // namespace fsdp
