// SPDX-License-Identifier: Apache-2.0
//
// The library calls Update for every block that it moves, from several threads, so most calls must be cheap: they take
// a lock, read the clock and return.
//
// The rate is measured from the first call on. What comes before it (opening the source, planning) is not counted: of
// 300,000 tensors it may be most of the first seconds, and a rate that includes it would make the time left ten times
// too long.
#include "fsdp/tools/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/terminal.h"

namespace fsdp {
namespace {

constexpr absl::Duration kRedrawEvery = absl::Milliseconds(100);
constexpr absl::Duration kLogEvery = absl::Seconds(10);
constexpr int kBarColumns = 24;

std::string Bar(double fraction, int columns) {
  const int full = static_cast<int>(fraction * columns);
  return absl::StrCat("[", std::string(full, '='), std::string(columns - full, ' '), "] ");
}

// 0 if stderr does not say how wide it is. Asked for each line: a window may change its size.
int TerminalColumns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// "  5s left"; empty while it is unknown.
std::string TimeLeft(const MeasuredWork& work) {
  const std::optional<absl::Duration> left = work.TimeLeft();
  if (!left) return "";
  const auto seconds = static_cast<int64_t>(absl::ToDoubleSeconds(*left) + 0.5);
  return absl::StrCat("  ", absl::FormatDuration(absl::Seconds(seconds)), " left");
}

}  // namespace

// From 999.5 and 9.95 on, %.0f and %.1f would round to one more digit.
std::string FormatBytes(double bytes) {
  const char* unit = "B";
  for (const char* larger : {"kB", "MB", "GB", "TB", "PB"}) {
    if (bytes < 999.5) break;
    bytes /= 1000;
    unit = larger;
  }
  return bytes < 9.95 && unit[1] != '\0' ? absl::StrFormat("%.1f %s", bytes, unit)
                                         : absl::StrFormat("%.0f %s", bytes, unit);
}

std::string ProgressLine(const std::string& title, const MeasuredWork& work, int bar_columns) {
  const int64_t done = work.bytes_done;
  // More may be done than was expected, such as a file that grows; the line then shows what is known.
  const int64_t total = std::max(work.bytes_total, done);
  const double fraction = work.fraction();
  // Cut, not rounded: 100 % is only shown when all is done.
  const int percent = work.is_done() ? 100 : std::min(99, static_cast<int>(100 * fraction));
  const double rate = static_cast<double>(work.bytes_measured) / std::max(absl::ToDoubleSeconds(work.elapsed), 1e-3);
  return absl::StrCat(title, " ", bar_columns > 0 ? Bar(fraction, bar_columns) : "",
                      absl::StrFormat("%3d%%  ", percent), FormatBytes(static_cast<double>(done)), " of ",
                      FormatBytes(static_cast<double>(total)), "  ", FormatBytes(rate), "/s", TimeLeft(work));
}

std::string TerminalLine(const std::string& title, const MeasuredWork& work, int columns) {
  const std::string with_bar = ProgressLine(title, work, kBarColumns);
  // The last column stays free: a terminal may wrap when it is filled.
  if (columns <= 0 || std::ssize(with_bar) < columns) return with_bar;
  return ProgressLine(title, work, 0).substr(0, columns - 1);
}

Progress::Progress(std::string title)
    : title_(std::move(title)), is_terminal_(ObeysCommands(STDERR_FILENO)), shown_(SteadyNow()) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', stderr);
}

void Progress::Update(int64_t bytes_done, int64_t bytes_total) {
  // Drawn under the lock: lines of two threads must not mix.
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::Time now = SteadyNow();
  const bool is_first = !meter_.has_started();
  meter_.SetBytes(bytes_done, bytes_total, now);
  // A line now would have no rate yet.
  if (is_first) shown_ = now;
  Show(now);
}

void Progress::UpdateTensors(int64_t tensors_done, int64_t tensors_total) {
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::Time now = SteadyNow();
  const bool is_first = !meter_.has_started();
  meter_.SetTensors(tensors_done, tensors_total, now);
  if (is_first) shown_ = now;
  Show(now);
}

void Progress::Show(absl::Time now) {
  const MeasuredWork work = meter_.Measured(now);
  // A log gets no line for quick work; a line that is being redrawn must not end at 99 %.
  const bool last_redraw = line_open_ && work.is_done();
  if (now - shown_ < (is_terminal_ ? kRedrawEvery : kLogEvery) && !last_redraw) return;
  shown_ = now;
  const std::string line = is_terminal_ ? TerminalLine(title_, work, TerminalColumns()) : ProgressLine(title_, work, 0);
  // \x1b[K clears the rest of a longer line.
  std::fprintf(stderr, is_terminal_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
  line_open_ = is_terminal_;
}

std::function<void(int64_t, int64_t)> Progress::callback() {
  return [this](int64_t done, int64_t total) { Update(done, total); };
}

std::function<void(int64_t, int64_t)> Progress::tensor_callback() {
  return [this](int64_t done, int64_t total) { UpdateTensors(done, total); };
}

}  // namespace fsdp
