// SPDX-License-Identifier: Apache-2.0
//
// RankOutput: forwards one stream of a rank's output line by line, behind a prefix, so that the lines of several ranks
// do not mix.
//
//   rank's stdout -> pipe -> ChildProcess::ReadOutput -> Add, once per line -> Flush -> launcher's stdout
//                                                            \-> LastLines, for the message about a failed rank
#ifndef FSDP_COLLECTIVES_JOB_RANK_OUTPUT_H_
#define FSDP_COLLECTIVES_JOB_RANK_OUTPUT_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace fsdp {

// The last 20 lines of a rank, from both of its streams in the order in which the launcher read them.
class LastLines {
 public:
  void Add(absl::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

class RankOutput {
 public:
  // Writes to `destination`, a descriptor that is not owned. `last_lines` must outlive the RankOutput.
  RankOutput(int destination, std::string prefix, LastLines* last_lines);

  // Takes a line without its newline. Does not write it yet.
  void Add(absl::string_view line);

  // Writes the added lines, per write as many as a pipe takes whole, so that no partial line appears between the lines
  // of other writers to the same pipe. Waits while the destination is full, until `deadline` or until `interrupt`, a
  // descriptor, is readable; the rest is kept for the next call. Drops the lines if the destination cannot be written,
  // for example because its reader is gone: the ranks continue to work, and error() has the reason.
  void Flush(int interrupt, absl::Time deadline);

  // Drops the newest of the waiting lines, so that at most `bytes` wait.
  void DropBeyond(size_t bytes);

  int destination() const { return destination_; }

  // errno of the first write that failed, such as ENOSPC; 0 without one, or if only the reader is gone.
  int error() const { return error_; }

  // Whether lines wait to be written.
  bool is_pending() const { return !pending_.empty(); }

 private:
  int destination_;
  std::string prefix_;
  LastLines* last_lines_;
  std::string pending_;
  int error_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_RANK_OUTPUT_H_
