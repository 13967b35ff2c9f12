// SPDX-License-Identifier: Apache-2.0
//
// PublishedRuns: runs that others measured and published, as data (published_runs.json), each with its source and
// conditions, and what SimulateStep says of them. A class is a set of rows that share a device, a dtype and a program;
// the achievable share of the device's peak is given for a class and never for a row.
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
  std::string conditions;  // in words, with what is assumed because the source does not say it
  std::string class_name;
  SimulatedJob job;
  std::string metric;  // "tokens_per_second" or "tflops", of one rank
  double published = 0;
};

// Of two runs that differ in their ranks alone: published and simulated relative change of speed.
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

// The run's metric as simulated.
absl::StatusOr<double> SimulatedMetric(const PublishedRun& run);

// Markdown: a row for each run with published and simulated speed and error, one for each delta, and what is not
// modelled.
absl::StatusOr<std::string> PublishedTable(const PublishedRuns& runs);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_PUBLISHED_RUNS_H_
