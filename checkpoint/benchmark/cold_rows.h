// SPDX-License-Identifier: Apache-2.0
//
// ColdRows: the rows of convert_benchmark: each runs in its own process, several times, between runs of cp + sync of
// the model, and is printed with its ratio to them. convert_benchmark.cc explains the columns.
#ifndef FSDP_CHECKPOINT_BENCHMARK_COLD_ROWS_H_
#define FSDP_CHECKPOINT_BENCHMARK_COLD_ROWS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

// One run of a row in its own process: wall time, largest resident set, and success (exit status 0).
struct Measurement {
  double seconds = 0;
  double peak_bytes = 0;
  bool done = false;
};

// Runs `body` in a child process, which exits with its result. A process for each row, because the peak of a process
// never falls: a row's own peak would be hidden by a larger one before it.
Measurement MeasureProcess(const std::function<int()>& body);

// For MeasureProcess: becomes a shell that runs `command`.
int RunShell(const std::string& command);

class ColdRows {
 public:
  struct Options {
    std::string directory;  // of all files, which are dropped from the page cache
    bool cold = true;       // false: the input is read once before instead
    int repetitions = 3;
    std::vector<std::string> names;  // only rows whose names hold one of these; empty: all
  };
  explicit ColdRows(Options options) : options_(std::move(options)) {}

  static void PrintHeader();

  bool IsWanted(const std::string& name) const;

  // Measures and prints a row that reads `source`; `target`, unless it is empty, is removed. cp of `model` runs before
  // the first and after each repetition, so that every repetition has one on both sides: their mean is the rate of the
  // disk in between. True without a measurement if the row is not wanted; false if it failed.
  bool Row(const std::string& name, const std::string& model, const std::string& source, const std::string& target,
           const std::function<int()>& body) const;

  // Reports a row that cannot be measured here, which is no failure.
  static bool NoNumber(const std::string& name, const std::string& why);

  // The file for the output of a row's process, and its last line.
  std::string Log() const { return options_.directory + "/log"; }
  std::string LastLine() const;

 private:
  // Prepares the page cache for a measurement that reads `path`. False if that fails.
  bool Prepare(const std::string& path) const;

  // Seconds of cp + sync of `model`; negative if that fails.
  double CopySeconds(const std::string& model) const;

  const Options options_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_COLD_ROWS_H_
