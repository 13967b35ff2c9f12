// SPDX-License-Identifier: Apache-2.0
//
// TraceFile: the work of the streams of all ranks as Chrome trace JSON, which Perfetto and chrome://tracing open: a
// process for each rank, and in it a row for each stream. Times of different hosts are comparable only as well as their
// clocks agree.
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
  // Creates the file, empty, so that a path that cannot be written is an error before training, not after it. Used only
  // by rank 0.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path);

  // Writes the spans of each rank, by rank, and closes the file. Call once.
  absl::Status Write(const std::vector<std::vector<TraceSpan>>& ranks);

 private:
  explicit TraceFile(const std::string& path) : path_(path), stream_(path, std::ios::binary | std::ios::trunc) {}

  const std::string path_;
  std::ofstream stream_;
};

// Every rank's spans, by rank, on every rank. Collective; blocks. Sends the spans as text in pieces of 512 KiB.
absl::StatusOr<std::vector<std::vector<TraceSpan>>> GatherSpans(ProcessGroup& group,
                                                                const std::vector<TraceSpan>& mine);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRACE_FILE_H_
