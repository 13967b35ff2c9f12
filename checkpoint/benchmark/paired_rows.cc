// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/paired_rows.h"

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// Not the mean: one disturbed repetition must not change it.
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

absl::StatusOr<double> RunRow(const PairedRow& row) {
  if (row.prepare) FSDP_RETURN_IF_ERROR(row.prepare());
  return row.run();
}

}  // namespace

absl::StatusOr<double> Timed(const std::function<absl::Status()>& run) {
  const absl::Time start = absl::Now();
  FSDP_RETURN_IF_ERROR(run());
  return absl::ToDoubleSeconds(absl::Now() - start);
}

// In the order of `rows`. A row without its floor could not be summarised.
std::vector<PairedRow> SelectRows(const std::vector<PairedRow>& rows, const std::string& wanted) {
  std::set<std::string> names;
  for (const PairedRow& row : rows) {
    if (absl::StrContains(row.name, wanted)) names.insert({row.name, row.floor});
  }
  std::vector<PairedRow> selected;
  for (const PairedRow& row : rows) {
    if (names.count(row.name) != 0) selected.push_back(row);
  }
  return selected;
}

// Repetition 0 warms up and is not counted. Rows are shuffled anew each time with a fixed seed, so a row does not
// always follow the same one (a disk is slow after a large write), and two runs of the program have the same order.
absl::Status MeasureRows(std::vector<PairedRow>& rows, int repetitions) {
  std::vector<PairedRow*> order;
  for (PairedRow& row : rows) order.push_back(&row);
  std::minstd_rand random(1);
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    std::shuffle(order.begin(), order.end(), random);
    for (PairedRow* const next : order) {
      PairedRow& row = *next;
      if (!row.missing.empty()) continue;
      const absl::StatusOr<double> seconds = RunRow(row);
      if (absl::IsUnavailable(seconds.status())) {
        row.missing = std::string(seconds.status().message());
      } else if (!seconds.ok()) {
        return Annotate(seconds.status(), absl::StrCat("row \"", row.name, "\""));
      } else if (repetition > 0) {
        row.seconds.push_back(*seconds);
      }
    }
  }
  return absl::OkStatus();
}

// A row has as many seconds as its floor, in the order of the repetitions.
nlohmann::json SummariseRows(const std::vector<PairedRow>& rows, int64_t payload_bytes) {
  nlohmann::json summary = nlohmann::json::array();
  for (const PairedRow& row : rows) {
    if (row.seconds.empty()) continue;
    const auto floor =
        std::find_if(rows.begin(), rows.end(), [&](const PairedRow& other) { return other.name == row.floor; });
    // Ratios of the same repetition, since a slow phase of the machine slows down both rows.
    std::vector<double> ratios;
    for (size_t i = 0; i < row.seconds.size(); ++i) ratios.push_back(row.seconds[i] / floor->seconds[i]);
    const auto [low, high] = std::minmax_element(row.seconds.begin(), row.seconds.end());
    const auto [low_ratio, high_ratio] = std::minmax_element(ratios.begin(), ratios.end());
    const double median = Median(row.seconds);
    summary.push_back({{"name", row.name},
                       {"seconds", median},
                       {"lowest", *low},
                       {"highest", *high},
                       {"gigabytes_per_second", static_cast<double>(payload_bytes) / median / 1e9},
                       {"ratio", Median(ratios)},
                       {"lowest_ratio", *low_ratio},
                       {"highest_ratio", *high_ratio}});
  }
  return summary;
}

nlohmann::json MissingRows(const std::vector<PairedRow>& rows) {
  nlohmann::json missing = nlohmann::json::array();
  for (const PairedRow& row : rows) {
    if (!row.missing.empty()) missing.push_back({{"name", row.name}, {"why", row.missing}});
  }
  return missing;
}

std::string MissingTable(const nlohmann::json& missing) {
  std::string table;
  for (const nlohmann::json& row : missing) {
    absl::StrAppendFormat(&table, "%-26s no number: %s\n", row["name"].get<std::string>(),
                          row["why"].get<std::string>());
  }
  return table;
}

std::string RowTable(const nlohmann::json& summary) {
  std::string table = absl::StrFormat("%-26s %9s %9s %9s %7s %6s %13s\n", "", "seconds", "lowest", "highest", "GB/s",
                                      "ratio", "spread");
  for (const nlohmann::json& row : summary) {
    const auto number = [&](const char* name) { return row[name].get<double>(); };
    absl::StrAppendFormat(&table, "%-26s %9.3f %9.3f %9.3f %7.2f %6.2f %6.2f %6.2f\n", row["name"].get<std::string>(),
                          number("seconds"), number("lowest"), number("highest"), number("gigabytes_per_second"),
                          number("ratio"), number("lowest_ratio"), number("highest_ratio"));
  }
  return table;
}

}  // namespace fsdp
