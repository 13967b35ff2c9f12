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
#include <string>

#include "absl/time/time.h"
#include "fsdp/tools/cli/work_meter.h"

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

  // The same for tensors, if they are counted too (MeasuredWork): the time left then follows from both.
  void UpdateTensors(int64_t tensors_done, int64_t tensors_total);

  // Update and UpdateTensors as the callbacks that the functions of checkpoint/ take. This must outlive them.
  std::function<void(int64_t, int64_t)> callback();
  std::function<void(int64_t, int64_t)> tensor_callback();

 private:
  // Shows the state, if it is time. Requires mutex_.
  void Show(absl::Time now);

  const std::string title_;
  const bool is_terminal_;

  std::mutex mutex_;
  // All guarded by mutex_.
  WorkMeter meter_;
  absl::Time shown_;        // time of the last redraw or line
  bool line_open_ = false;  // a line is being redrawn
};

// "convert  37%  1.2 GB of 3.3 GB  412 MB/s  5s left", with a bar of `bar_columns` columns after the title, or none for
// 0. The percentage and the time left are of all work, and 100% is shown only when it is done. Pure.
std::string ProgressLine(const std::string& title, const MeasuredWork& work, int bar_columns);

// The line for a terminal of `columns` columns: with a bar if there is room for it, and cut at the end if the rest is
// longer, so that redrawing it does not begin a new line. 0: an unknown number, enough for all. Pure.
std::string TerminalLine(const std::string& title, const MeasuredWork& work, int columns);

// "3.3 GB", "412 MB", "17 kB", "999 B": three digits at most.
std::string FormatBytes(double bytes);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_PROGRESS_H_
