// SPDX-License-Identifier: Apache-2.0
//
// MeasureRows: times rows alternately and compares each with its floor. The absolute numbers of a shared machine mean
// little; the ratio of a row to the floor of the same repetition, and its spread, can be compared between machines.
#ifndef FSDP_CHECKPOINT_BENCHMARK_PAIRED_ROWS_H_
#define FSDP_CHECKPOINT_BENCHMARK_PAIRED_ROWS_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

struct PairedRow {
  std::string name;
  // The name of the row that the ratio refers to; a floor names itself.
  std::string floor;
  // Returns the measured seconds; kUnavailable if the row cannot run on this machine.
  std::function<absl::StatusOr<double>()> run;
  // Runs before `run`, untimed; may be empty.
  std::function<absl::Status()> prepare = {};
  // Results: one for each counted repetition, or the reason why they are missing.
  std::vector<double> seconds = {};
  std::string missing = {};
};

// The wall time of `run`, in seconds.
absl::StatusOr<double> Timed(const std::function<absl::Status()>& run);

// The rows whose name contains `wanted`, and their floors.
std::vector<PairedRow> SelectRows(const std::vector<PairedRow>& rows, const std::string& wanted);

// Runs all rows `repetitions` times, after one uncounted run; in a random order for each repetition, since the speed of
// a disk depends on its previous work. The error names the row.
absl::Status MeasureRows(std::vector<PairedRow>& rows, int repetitions);

// One object for each row that was run: name, median, lowest and highest of its seconds, gigabytes_per_second = payload
// / median / 1e9, and the median, lowest and highest of its ratios.
nlohmann::json SummariseRows(const std::vector<PairedRow>& rows, int64_t payload_bytes);

// One object for each row that could not run: name, why.
nlohmann::json MissingRows(const std::vector<PairedRow>& rows);

// The same as tables, one line per row.
std::string RowTable(const nlohmann::json& summary);
std::string MissingTable(const nlohmann::json& missing);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_PAIRED_ROWS_H_
