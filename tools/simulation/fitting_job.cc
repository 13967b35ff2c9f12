// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/fitting_job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdp {
namespace {

// A job with some flags that differ from the original's.
struct Candidate {
  SimulatedJob job;
  std::vector<std::string> flags;
};

// Simulates `candidate`; nullopt if it does not fit, or is impossible.
std::optional<FittingJob> Try(const Candidate& candidate) {
  const absl::StatusOr<SimulatedStep> step = SimulateStep(candidate.job);
  if (!step.ok() || !Fits(candidate.job, *step)) return std::nullopt;
  return FittingJob{absl::StrJoin(candidate.flags, " "), step->memory.peak(), step->tokens_per_second};
}

// The first of `candidates` that fits.
std::optional<FittingJob> FirstThatFits(const std::vector<Candidate>& candidates) {
  for (const Candidate& candidate : candidates) {
    if (std::optional<FittingJob> found = Try(candidate)) return found;
  }
  return std::nullopt;
}

void SetCheckpointing(Checkpointing checkpointing, Candidate& candidate) {
  if (candidate.job.work.checkpointing == checkpointing) return;
  candidate.job.work.checkpointing = checkpointing;
  candidate.flags.push_back(absl::StrCat("--activation_checkpointing=", std::string(CheckpointingName(checkpointing))));
}

void SetBatchSize(int64_t batch_size, Candidate& candidate) {
  if (candidate.job.work.batch_size == batch_size) return;
  candidate.job.work.batch_size = batch_size;
  candidate.flags.push_back(absl::StrCat("--batch_size=", batch_size));
}

void ShardFully(Candidate& candidate) {
  if (candidate.job.plan.strategy == ShardingStrategy::kFullShard) return;
  candidate.job.plan.strategy = ShardingStrategy::kFullShard;
  candidate.job.shard_group_size = 0;
  candidate.flags.emplace_back("--sharding_strategy=full_shard");
}

void MultiplyRanks(int factor, Candidate& candidate) {
  if (factor == 1) return;
  candidate.job.ranks *= factor;
  candidate.job.hosts *= factor;
  candidate.flags.push_back(absl::StrCat("--ranks=", candidate.job.ranks, " --hosts=", candidate.job.hosts));
}

// In the order of the enumeration, each of which keeps less for backward.
std::vector<Candidate> WithCheckpointing(const Candidate& base) {
  std::vector<Candidate> candidates;
  for (const Checkpointing more : {Checkpointing::kSelectiveOp, Checkpointing::kSelectiveLayer, Checkpointing::kFull}) {
    if (more <= base.job.work.checkpointing) continue;
    SetCheckpointing(more, candidates.emplace_back(base));
  }
  return candidates;
}

std::vector<Candidate> WithSmallerBatches(const Candidate& base) {
  std::vector<Candidate> candidates;
  for (int64_t batch_size = base.job.work.batch_size / 2; batch_size > 0; batch_size /= 2) {
    SetBatchSize(batch_size, candidates.emplace_back(base));
  }
  return candidates;
}

std::vector<Candidate> WithMoreRanks(const Candidate& base, int first_factor) {
  std::vector<Candidate> candidates;
  for (int factor = first_factor; int64_t{base.job.ranks} * factor <= kMaxFittingRanks; factor *= 2) {
    MultiplyRanks(factor, candidates.emplace_back(base));
  }
  return candidates;
}

}  // namespace

bool Fits(const SimulatedJob& job, const SimulatedStep& step) {
  return job.device.memory_bytes == 0 || step.memory.peak() <= job.device.memory_bytes;
}

std::vector<FittingJob> JobsThatFit(const SimulatedJob& job) {
  const Candidate base = {job, {}};
  std::vector<FittingJob> jobs;
  const auto add = [&](std::optional<FittingJob> found) {
    if (found) jobs.push_back(*std::move(found));
  };
  add(FirstThatFits(WithCheckpointing(base)));
  add(FirstThatFits(WithSmallerBatches(base)));
  if (job.plan.strategy != ShardingStrategy::kFullShard) {
    Candidate full = base;
    ShardFully(full);
    add(Try(full));
  }
  add(FirstThatFits(WithMoreRanks(base, 2)));
  if (!jobs.empty()) return jobs;
  Candidate all = base;
  SetCheckpointing(Checkpointing::kFull, all);
  SetBatchSize(1, all);
  ShardFully(all);
  add(FirstThatFits(WithMoreRanks(all, 1)));
  return jobs;
}

}  // namespace fsdp
