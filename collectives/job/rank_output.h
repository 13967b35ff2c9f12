// SPDX-License-Identifier: Apache-2.0
//
// RankOutput: one stream of a rank's output, passed on line by line behind a prefix, so that the ranks' lines do not
// mix.
#ifndef FSDP_COLLECTIVES_JOB_RANK_OUTPUT_H_
#define FSDP_COLLECTIVES_JOB_RANK_OUTPUT_H_

#include <deque>
#include <string>
#include <string_view>

namespace fsdp {

// The last lines of a rank, of both its streams, for the message about its failure.
class LastLines {
 public:
  void Add(std::string line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

class RankOutput {
 public:
  // Reads from `source`, which must not block, and writes to `destination`; neither is owned. `last_lines` outlives it.
  RankOutput(int source, int destination, std::string prefix, LastLines* last_lines);

  int source() const { return source_; }

  // Passes on the whole lines that are there. False at the end of the stream, once everything is passed on.
  bool Pass();

 private:
  void Take(std::string_view bytes);
  void EndLine();

  int source_;
  int destination_;
  std::string prefix_;
  LastLines* last_lines_;
  std::string line_;     // that has not ended yet
  std::string pending_;  // lines to be written at once
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_RANK_OUTPUT_H_
