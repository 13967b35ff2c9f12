// SPDX-License-Identifier: Apache-2.0
//
// PublishedRuns: runs measured and published by others, as data (published_runs.json), each with its source and
// conditions, and SimulateStep's results for them. A class is a set of rows with the same device, dtype and program;
// the achievable share of the device's peak is set per class and never per row.
#ifndef FSDP_TOOLS_SIMULATION_PUBLISHED_RUNS_H_
#define FSDP_TOOLS_SIMULATION_PUBLISHED_RUNS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/tools/simulation/simulated_job.h"

namespace fsdp {

struct PublishedRun {
  std::string name;
  std::string source;      // URL
  std::string conditions;  // in words, with the assumptions for conditions that the source does not give
  std::string class_name;
  SimulatedJob job;
  std::string metric;  // "tokens_per_second" or "tflops", of one rank
  double published = 0;
};

// Two runs that differ only in their ranks: published and simulated relative change of speed.
struct PublishedDelta {
  std::string from, to;
};

struct UnmodelledRun {
  std::string name, source, published, why;
};

struct PublishedRuns {
  std::vector<PublishedRun> runs;
  std::vector<PublishedDelta> deltas;
  std::vector<UnmodelledRun> not_modelled;
};

// kInvalidArgument, naming the row, for text that is not such a file.
absl::StatusOr<PublishedRuns> ParsePublishedRuns(std::string_view json);

// The simulated value of the run's metric.
absl::StatusOr<double> SimulatedMetric(const PublishedRun& run);

// Markdown: a row for each run with published and simulated speed and error, one for each delta, and the list of runs
// that are not modelled.
absl::StatusOr<std::string> PublishedTable(const PublishedRuns& runs);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_PUBLISHED_RUNS_H_
