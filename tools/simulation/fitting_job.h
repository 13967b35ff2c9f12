// SPDX-License-Identifier: Apache-2.0
//
// JobsThatFit: what would make a job fit the memory of its device, each answer simulated.
#ifndef FSDP_TOOLS_SIMULATION_FITTING_JOB_H_
#define FSDP_TOOLS_SIMULATION_FITTING_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/tools/simulation/simulated_job.h"

namespace fsdp {

// The most ranks that are tried.
inline constexpr int kMaxFittingRanks = 1 << 14;

// A change of a job, after which it fits.
struct FittingJob {
  std::string flags;  // of simulate: "--activation_checkpointing=full"
  int64_t peak_bytes = 0;
  double tokens_per_second = 0;
};

// True unless the device's memory is known and too small.
bool Fits(const SimulatedJob& job, const SimulatedStep& step);

// For a job that does not fit. Of each kind the smallest change that is enough: more activation checkpointing, a
// smaller batch, full_shard in place of another strategy, more ranks on hosts of the same kind. If no single one is
// enough, all of the first three together, with more ranks if need be. Empty if even that is not enough.
std::vector<FittingJob> JobsThatFit(const SimulatedJob& job);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_FITTING_JOB_H_
