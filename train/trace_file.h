// SPDX-License-Identifier: Apache-2.0
//
// TraceFile: what the streams of all ranks did, as Chrome trace JSON, which Perfetto and chrome://tracing open: a
// process per rank, in it a row per stream. Hosts agree on the time as well as their clocks do.
#ifndef FSDP_TRAIN_TRACE_FILE_H_
#define FSDP_TRAIN_TRACE_FILE_H_

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/trace.h"

namespace fsdp {

class TraceFile {
 public:
  // Makes the file now, empty, so that one that cannot be made is no news of the run's end.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path);

  // The spans of each rank, by rank. Once.
  absl::Status Write(const std::vector<std::vector<TraceSpan>>& ranks);

 private:
  explicit TraceFile(const std::string& path) : path_(path), stream_(path, std::ios::binary | std::ios::trunc) {}

  const std::string path_;
  std::ofstream stream_;
};

// Every rank's spans, by rank, on every rank. Collective; blocking.
absl::StatusOr<std::vector<std::vector<TraceSpan>>> GatherSpans(ProcessGroup& group,
                                                                const std::vector<TraceSpan>& mine);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRACE_FILE_H_
