// SPDX-License-Identifier: Apache-2.0
//
// The results of simulated jobs, for people, for programs, and as a page of HTML. All of it is pure. A job that does
// not fit its device is a result like another, but the first thing that a person must know.
#ifndef FSDP_TOOLS_SIMULATION_SIMULATION_REPORT_H_
#define FSDP_TOOLS_SIMULATION_SIMULATION_REPORT_H_

#include <string>
#include <vector>

#include "fsdp/tools/simulation/fitting_job.h"
#include "fsdp/tools/simulation/simulated_job.h"

namespace fsdp {

struct SimulatedRun {
  SimulatedJob job;
  SimulatedStep step;
  std::vector<FittingJob> fitting;  // JobsThatFit, if it does not
};

// "8 ranks on 1 host".
std::string RanksText(const SimulatedJob& job);

// The name of a run among `runs`: its ranks, and its strategy if they have several, "8 ranks on 1 host, no_shard".
std::string RunText(const SimulatedRun& run, const std::vector<SimulatedRun>& runs);

// The speed of a rank, divided by the speed of a rank in the first of `runs` with the same strategy.
double Scaling(const SimulatedRun& run, const std::vector<SimulatedRun>& runs);

// Of each strategy of `runs` the first one that fits, the fastest strategy first; null runs, at the end, are strategies
// of which none does. Empty if there is only one strategy.
struct FirstFit {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  const SimulatedRun* run = nullptr;
};
std::vector<FirstFit> FirstFits(const std::vector<SimulatedRun>& runs);

// Lines about one job; a table of several, which differ in their ranks and strategies. Before them, for each job that
// does not fit, "does not fit: 8 ranks on 1 host, each needs 99.8 GiB and an h100 has 74.5 GiB", and a line for each
// change after which it would; of several strategies instead which of them fit, after the table.
std::string SimulationText(const std::vector<SimulatedRun>& runs);

// One object: of one job its members, of several {"jobs": [...]}.
std::string SimulationJson(const std::vector<SimulatedRun>& runs);

// One self-contained page, UTF-8, about jobs that differ in their ranks and strategies. `model` is the name of the
// config.
std::string SimulationPage(const std::string& model, const std::vector<SimulatedRun>& runs);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_SIMULATION_REPORT_H_
