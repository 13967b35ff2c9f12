// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/simulation_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/counted.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGibibyte = 1 << 30;

double GiB(int64_t bytes) { return static_cast<double>(bytes) / kGibibyte; }

// "17 ms", "2.51 s": a save of a small model takes less than a tenth of a second.
std::string Seconds(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.3g s", seconds);
  return seconds >= 1e-3 ? absl::StrFormat("%.3g ms", 1e3 * seconds) : absl::StrFormat("%.3g us", 1e6 * seconds);
}

std::string OneText(const SimulatedRun& run) {
  const SimulatedJob& job = run.job;
  const SimulatedStep& step = run.step;
  const StepTimeline& timeline = step.timeline;
  std::string text = absl::StrFormat("%s, %s, %d parameters: an estimate, not a measurement\n", RanksText(job),
                                     job.device.name, step.parameters);
  absl::StrAppendFormat(&text, "tokens a second        %.0f, %.0f a rank, MFU %.1f %%\n", step.tokens_per_second,
                        step.tokens_per_second / job.ranks, 100 * step.model_flops_utilization);
  absl::StrAppendFormat(&text, "step                   %.4g s, computing %.4g s\n", timeline.seconds, timeline.compute);
  absl::StrAppendFormat(&text, "exposed communication  %.1f %%, %.4g s of %.4g s\n", 100 * step.exposed_communication,
                        timeline.exposed, timeline.communication);
  absl::StrAppendFormat(&text, "memory of a rank       %.1f GiB: FSDP %.1f, optimizer %.1f, activations %.1f\n",
                        GiB(step.memory.peak()), GiB(step.memory.fsdp), GiB(step.memory.optimizer),
                        GiB(step.memory.activations));
  absl::StrAppendFormat(&text, "checkpoint             saved in %s, loaded in %s\n", Seconds(step.save_seconds),
                        Seconds(step.load_seconds));
  return text;
}

double SpeedOfRank(const SimulatedRun& run) { return run.step.tokens_per_second / run.job.ranks; }

bool HasStrategies(const std::vector<SimulatedRun>& runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const SimulatedRun& run) { return run.job.plan.strategy != runs.front().job.plan.strategy; });
}

std::string TableText(const std::vector<SimulatedRun>& runs) {
  const SimulatedRun& first = runs.front();
  const bool has_strategies = HasStrategies(runs);
  std::string text =
      absl::StrFormat("%s, %d parameters: estimates, not measurements\n", first.job.device.name, first.step.parameters);
  absl::StrAppendFormat(&text, "%7s %6s %12s %9s %8s %6s %8s %11s %5s %9s %9s%s\n", "ranks", "hosts", "tokens/s",
                        "a rank", "scaling", "MFU", "exposed", "GiB a rank", "fits", "save", "load",
                        has_strategies ? "  strategy" : "");
  for (const SimulatedRun& run : runs) {
    const SimulatedStep& step = run.step;
    const std::string strategy =
        has_strategies ? absl::StrCat("  ", std::string(ShardingStrategyName(run.job.plan.strategy))) : "";
    absl::StrAppendFormat(&text, "%7d %6d %12.0f %9.0f %7.1f%% %5.1f%% %7.1f%% %11.1f %5s %9s %9s%s\n", run.job.ranks,
                          run.job.hosts, step.tokens_per_second, SpeedOfRank(run), 100 * Scaling(run, runs),
                          100 * step.model_flops_utilization, 100 * step.exposed_communication, GiB(step.memory.peak()),
                          Fits(run.job, step) ? "yes" : "no", Seconds(step.save_seconds), Seconds(step.load_seconds),
                          strategy);
  }
  return text;
}

// "does not fit: ...".
std::string NeedText(const SimulatedRun& run, const std::vector<SimulatedRun>& runs) {
  return absl::StrFormat("does not fit: %s, each needs %.1f GiB and the %s has %.1f GiB\n", RunText(run, runs),
                         GiB(run.step.memory.peak()), run.job.device.name, GiB(run.job.device.memory_bytes));
}

std::string ChangesText(const SimulatedRun& run) {
  if (run.fitting.empty()) {
    return absl::StrCat("  nothing that was tried is enough: full activation checkpointing, a batch of 1, full_shard, ",
                        "up to ", kMaxFittingRanks, " ranks\n");
  }
  std::string text;
  for (const FittingJob& fitting : run.fitting) {
    absl::StrAppendFormat(&text, "  fits with %s: %.1f GiB, %.0f tokens a second\n", fitting.flags,
                          GiB(fitting.peak_bytes), fitting.tokens_per_second);
  }
  return text;
}

std::string FirstFitsText(const std::vector<FirstFit>& fits) {
  if (fits.empty()) return "";
  std::string text = "the first numbers of ranks that fit, the fastest first\n";
  for (const auto& [strategy, run] : fits) {
    const std::string name(ShardingStrategyName(strategy));
    if (run == nullptr) {
      absl::StrAppendFormat(&text, "  %-19s none of these\n", name);
    } else {
      absl::StrAppendFormat(&text, "  %-19s %s: %.1f GiB, %.0f tokens a second of each\n", name, RanksText(run->job),
                            GiB(run->step.memory.peak()), SpeedOfRank(*run));
    }
  }
  return text;
}

Json JsonOf(const SimulatedRun& run) {
  const SimulatedStep& step = run.step;
  Json json = {
      {"tokens_per_second", step.tokens_per_second},
      {"exposed_communication", step.exposed_communication},
      {"peak_bytes", step.memory.peak()},
      {"save_seconds", step.save_seconds},
      {"load_seconds", step.load_seconds},
      {"tokens_per_second_per_rank", step.tokens_per_second / run.job.ranks},
      {"step_seconds", step.timeline.seconds},
      {"compute_seconds", step.timeline.compute},
      {"exposed_seconds", step.timeline.exposed},
      {"communication_seconds", step.timeline.communication},
      {"fsdp_bytes", step.memory.fsdp},
      {"optimizer_bytes", step.memory.optimizer},
      {"activation_bytes", step.memory.activations},
      {"parameters", step.parameters},
      {"model_flops_utilization", step.model_flops_utilization},
      {"sharding_strategy", ShardingStrategyName(run.job.plan.strategy)},
      {"ranks", run.job.ranks},
      {"hosts", run.job.hosts},
      {"device_bytes", run.job.device.memory_bytes == 0 ? Json() : Json(run.job.device.memory_bytes)},
      {"fits", run.job.device.memory_bytes == 0 ? Json() : Json(Fits(run.job, step))},
      {"would_fit", Json::array()},
  };
  for (const FittingJob& fitting : run.fitting) {
    json["would_fit"].push_back({{"flags", fitting.flags},
                                 {"peak_bytes", fitting.peak_bytes},
                                 {"tokens_per_second", fitting.tokens_per_second}});
  }
  return json;
}

}  // namespace

std::string RanksText(const SimulatedJob& job) {
  return absl::StrCat(Counted(job.ranks, "rank"), " on ", Counted(job.hosts, "host"));
}

std::string RunText(const SimulatedRun& run, const std::vector<SimulatedRun>& runs) {
  const std::string ranks = RanksText(run.job);
  return HasStrategies(runs) ? absl::StrCat(ranks, ", ", std::string(ShardingStrategyName(run.job.plan.strategy)))
                             : ranks;
}

double Scaling(const SimulatedRun& run, const std::vector<SimulatedRun>& runs) {
  const auto first = std::find_if(runs.begin(), runs.end(), [&](const SimulatedRun& other) {
    return other.job.plan.strategy == run.job.plan.strategy;
  });
  return SpeedOfRank(run) / SpeedOfRank(*first);
}

std::vector<FirstFit> FirstFits(const std::vector<SimulatedRun>& runs) {
  if (!HasStrategies(runs)) return {};
  std::vector<FirstFit> fits;
  for (const SimulatedRun& run : runs) {
    auto fit = std::find_if(fits.begin(), fits.end(),
                            [&](const FirstFit& one) { return one.strategy == run.job.plan.strategy; });
    if (fit == fits.end()) fit = fits.insert(fit, FirstFit{run.job.plan.strategy, nullptr});
    if (fit->run == nullptr && Fits(run.job, run.step)) fit->run = &run;
  }
  std::stable_sort(fits.begin(), fits.end(), [](const FirstFit& a, const FirstFit& b) {
    if (a.run == nullptr || b.run == nullptr) return a.run != nullptr && b.run == nullptr;
    return SpeedOfRank(*a.run) > SpeedOfRank(*b.run);
  });
  return fits;
}

std::string SimulationText(const std::vector<SimulatedRun>& runs) {
  const std::vector<FirstFit> fits = FirstFits(runs);
  const bool some_strategy_fits = !fits.empty() && fits.front().run != nullptr;
  std::string text;
  for (const SimulatedRun& run : runs) {
    if (!Fits(run.job, run.step))
      absl::StrAppend(&text, NeedText(run, runs), some_strategy_fits ? "" : ChangesText(run));
  }
  if (runs.size() == 1) return text + OneText(runs.front());
  return text + TableText(runs) + (some_strategy_fits ? FirstFitsText(fits) : "");
}

std::string SimulationJson(const std::vector<SimulatedRun>& runs) {
  if (runs.size() == 1) return JsonOf(runs.front()).dump(2) + "\n";
  Json json = {{"jobs", Json::array()}};
  for (const SimulatedRun& run : runs) json["jobs"].push_back(JsonOf(run));
  return json.dump(2) + "\n";
}

}  // namespace fsdp
