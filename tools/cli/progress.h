// SPDX-License-Identifier: Apache-2.0
//
// Progress: shows the progress of long work on stderr. On a terminal it is one line that is redrawn, with a bar, bytes,
// rate and time left; otherwise it is a line every ten seconds, so that a log stays short and quick work prints
// nothing. Thread-safe.
#ifndef FSDP_TOOLS_CLI_PROGRESS_H_
#define FSDP_TOOLS_CLI_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace fsdp {

class Progress {
 public:
  // `title` begins each line: "convert".
  explicit Progress(std::string title);

  // Ends the line that is being redrawn.
  ~Progress();

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows the state, unless it was shown less than 0.1 s ago on a terminal, or less than 10 s ago elsewhere.
  // `bytes_total` may change between calls.
  void Update(int64_t bytes_done, int64_t bytes_total);

  // Update as the callback that the functions of checkpoint/ take. This must outlive it.
  std::function<void(int64_t, int64_t)> callback();

 private:
  const std::string title_;
  const bool is_terminal_;

  std::mutex mutex_;
  // All guarded by mutex_.
  std::optional<absl::Time> first_;  // time of the first Update
  int64_t first_bytes_ = 0;          // done by then
  absl::Time shown_;                 // time of the last redraw or line
  bool line_open_ = false;           // a line is being redrawn
};

// Work of which `bytes_done` of `bytes_total` are done: `bytes_measured` of them, the last ones, in `elapsed`.
struct MeasuredWork {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;
  int64_t bytes_measured = 0;
  absl::Duration elapsed;
};

// "convert  37%  1.2 GB of 3.3 GB  412 MB/s  5s left", with a bar of `bar_columns` columns after the title, or none for
// 0. The rate is the mean over `elapsed`; in the first second it is too uncertain to say what time is left. 100% is
// shown only when all bytes are done. Pure.
std::string ProgressLine(const std::string& title, const MeasuredWork& work, int bar_columns);

// The line for a terminal of `columns` columns: with a bar if there is room for it, and cut at the end if the rest is
// longer, so that redrawing it does not begin a new line. 0: an unknown number, enough for all. Pure.
std::string TerminalLine(const std::string& title, const MeasuredWork& work, int columns);

// "3.3 GB", "412 MB", "17 kB", "999 B": three digits at most.
std::string FormatBytes(double bytes);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_PROGRESS_H_
