// SPDX-License-Identifier: Apache-2.0
//
// The Chrome trace format ("Trace Event Format"): an object with a list of events. Metadata events ("ph": "M") name
// each process, which is a rank, and each thread, which is a stream; a complete event ("ph": "X") is a span with its
// begin and duration in microseconds. Perfetto nests complete events of one thread by their times.
#include "fsdp/train/trace_file.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// AllGatherObject is for small texts, so spans are sent in pieces of this size.
constexpr size_t kBytesPerRound = 512 << 10;

// Text, since AllGatherObject sends texts.
// One line for each span: begin, end, stream, name. Names contain no tab or newline.
std::string Encode(const std::vector<TraceSpan>& spans) {
  std::string text;
  for (const TraceSpan& span : spans) {
    absl::StrAppend(&text, span.begin_ns, "\t", span.end_ns, "\t", span.stream, "\t", span.name, "\n");
  }
  return text;
}

absl::StatusOr<std::vector<TraceSpan>> Decode(const std::string& text, int rank) {
  std::vector<TraceSpan> spans;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    TraceSpan span;
    if (fields.size() != 4 || !absl::SimpleAtoi(fields[0], &span.begin_ns) ||
        !absl::SimpleAtoi(fields[1], &span.end_ns)) {
      return absl::InternalError(absl::StrCat("trace of rank ", rank, ": \"", line, "\" is not a span"));
    }
    span.stream = fields[2];
    span.name = fields[3];
    spans.push_back(std::move(span));
  }
  return spans;
}

// The category, for filters in Perfetto.
std::string CategoryOf(const std::string& name) {
  for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce"}) {
    if (name.rfind(collective, 0) == 0) return "collective";
  }
  return "compute";
}

Json NameOf(const char* what, int rank, size_t stream, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", stream}, {"args", {{"name", name}}}};
}

int64_t FirstBegin(const std::vector<std::vector<TraceSpan>>& ranks) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& spans : ranks) {
    for (const TraceSpan& span : spans) first = std::min(first, span.begin_ns);
  }
  return first;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(const std::string& path) {
  std::unique_ptr<TraceFile> file(new TraceFile(path));
  if (file->stream_.good()) return file;
  return absl::InvalidArgumentError(absl::StrFormat("--trace=%s: cannot be written", path));
}

absl::Status TraceFile::Write(const std::vector<std::vector<TraceSpan>>& ranks) {
  // Times are relative to the first span: as a double, microseconds since the epoch would lose the fractions.
  const int64_t first = FirstBegin(ranks);
  stream_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const char* separator = "";
  const auto put = [&](const Json& event) {
    stream_ << separator << event.dump();
    separator = ",\n";
  };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int pid = static_cast<int>(rank);
    put(NameOf("process_name", pid, 0, absl::StrCat("rank ", rank)));
    std::vector<std::string> streams;  // in the order of their first ended span
    for (const TraceSpan& span : ranks[rank]) {
      const size_t tid = std::find(streams.begin(), streams.end(), span.stream) - streams.begin();
      if (tid == streams.size()) {
        streams.push_back(span.stream);
        put(NameOf("thread_name", pid, tid, span.stream));
      }
      put({{"name", span.name},
           {"cat", CategoryOf(span.name)},
           {"ph", "X"},
           {"pid", pid},
           {"tid", tid},
           {"ts", static_cast<double>(span.begin_ns - first) / 1000},
           {"dur", static_cast<double>(span.end_ns - span.begin_ns) / 1000}});
    }
  }
  stream_ << "\n]}\n";
  stream_.close();
  if (stream_.good()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat("--trace=%s: writing failed", path_));
}

// All ranks send a piece in each round until a round in which no rank sent a full one. A rank whose text is complete
// sends empty pieces, so every rank makes the same number of calls.
absl::StatusOr<std::vector<std::vector<TraceSpan>>> GatherSpans(ProcessGroup& group,
                                                                const std::vector<TraceSpan>& mine) {
  const std::string text = Encode(mine);
  std::vector<std::string> texts(group.size());
  for (bool more = true; more;) {
    // A rank receives its own pieces too, so their length is its position.
    const size_t sent = std::min(texts[group.rank()].size(), text.size());
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> pieces,
                          group.AllGatherObject(text.substr(sent, kBytesPerRound)));
    more = false;
    for (size_t rank = 0; rank < pieces.size(); ++rank) {
      texts[rank] += pieces[rank];
      more |= pieces[rank].size() == kBytesPerRound;
    }
  }
  std::vector<std::vector<TraceSpan>> ranks(group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    FSDP_ASSIGN_OR_RETURN(ranks[rank], Decode(texts[rank], rank));
  }
  return ranks;
}

}  // namespace fsdp
