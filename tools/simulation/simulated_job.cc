// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/simulation/simulated_job.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tools/simulation/small_file.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

// AdamW reads the parameter, its gradient and two moments and writes all except the gradient; the norm and the scaling
// of gradients read and write them once more.
constexpr double kOptimizerBytes = 28 + 12;

// A checkpoint has the parameter and two moments, each of 4 bytes per element.
constexpr double kCheckpointBytes = 12;

struct Spans {
  GroupSpan shard, replica;
};

// The time and the memory of a simulation grow with the computations of units in a step: a million take a second.
constexpr int64_t kMaxUnitSteps = int64_t{1} << 20;

// Shards are padded to the ranks, so more of them could make a size beyond int64.
constexpr int kMaxRanks = 1 << 20;

absl::Status CheckLayout(const SimulatedJob& job) {
  const auto refused = [](const std::string& message) { return absl::InvalidArgumentError(message); };
  if (job.ranks > kMaxRanks) {
    return refused(absl::StrCat("ranks is ", job.ranks, ", wanted at most ", kMaxRanks));
  }
  if (job.ranks < 1 || job.hosts < 1 || job.ranks % job.hosts != 0) {
    return refused(absl::StrCat("ranks is ", job.ranks, " and hosts ", job.hosts,
                                ", wanted at least 1 of each, and hosts that have equally many ranks"));
  }
  if (job.micro_steps < 1) {
    return refused(absl::StrCat("grad_accum is ", job.micro_steps, ", wanted at least 1"));
  }
  if (job.device.PeakFlops(job.precision) <= 0 || job.device.memory_bandwidth <= 0 || job.device.attention_flops <= 0) {
    return refused("the device has no speed for this dtype, wanted FLOP/s and a memory bandwidth above 0");
  }
  if (!(job.device.achievable > 0 && job.device.achievable <= 1)) {
    return refused(absl::StrCat("achievable is ", job.device.achievable, ", wanted a share above 0 and up to 1"));
  }
  if (!(job.disk_write > 0) || !(job.disk_read > 0)) return refused("wanted disks of more than 0 bytes a second");
  if (job.shard_group_size != 0 && !IsHybrid(job.plan.strategy)) {
    return refused(absl::StrCat("shard_group_size is ", job.shard_group_size,
                                ", wanted a hybrid strategy with it, not ",
                                std::string(ShardingStrategyName(job.plan.strategy))));
  }
  return Validate(job.links);
}

// A parameter is padded by less than a row for each rank (fully_shard); the plan of memory adds up 16 bytes for each
// element in int64.
absl::Status CheckSizes(const SimulatedJob& job, const std::vector<ModelUnit>& units) {
  constexpr double kMostElements = 1e17;
  double elements = 0;
  for (const ModelUnit& unit : units) {
    for (const ShardLayout::Entry& parameter : unit.parameters) {
      elements += static_cast<double>(parameter.shape.numel()) +
                  static_cast<double>(parameter.shape.row_numel()) * static_cast<double>(job.ranks);
    }
  }
  if (!(elements <= kMostElements)) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", elements, " parameters, padded for ", job.ranks,
                                                   " ranks, wanted at most ", kMostElements));
  }
  const int64_t most = kMaxUnitSteps / static_cast<int64_t>(units.size());
  if (job.micro_steps <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("grad_accum is ", job.micro_steps, ", wanted at most ", most,
                                                 " for a model of ", units.size(),
                                                 " units; the speed of more is nearly the same"));
}

// Consecutive ranks form a shard group; ranks at the same place in their groups replicate.
absl::StatusOr<Spans> SpansOf(const SimulatedJob& job) {
  // CheckLayout has made sure that it divides.
  const int on_host = job.ranks / job.hosts;
  int shard = job.plan.strategy == ShardingStrategy::kNoShard ? 1 : job.ranks;
  if (IsHybrid(job.plan.strategy)) {
    shard = job.shard_group_size != 0 ? job.shard_group_size : job.hosts > 1 ? on_host : job.ranks;
  }
  // A group that covers parts of several hosts has no single kind of link.
  if (shard < 1 || job.ranks % shard != 0 || (shard % on_host != 0 && on_host % shard != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("shard_group_size is ", shard, ", wanted a divisor of ", job.ranks,
                                                   " ranks that divides the ", on_host,
                                                   " ranks of a host or is a multiple of them"));
  }
  Spans spans;
  spans.shard = {shard, std::max(1, shard / on_host), std::max(1, on_host / shard)};
  spans.replica.ranks = job.ranks / shard;
  spans.replica.hosts = shard >= on_host ? spans.replica.ranks : job.hosts;
  spans.replica.groups_on_host = std::min(shard, on_host);
  return spans;
}

// Computation continues during a collective, with the rest of the device. The computation during a unit's collective is
// most often another unit's; all blocks are alike, so it is counted for the unit itself.
void SlowBesideCollectives(const SimulatedJob& job, UnitCost& cost) {
  const double share = job.device.collective_share;
  cost.forward += share * cost.all_gather;
  const bool gathers_again = ReshardsAfterForward(job.plan.strategy);
  cost.backward += share * ((gathers_again ? cost.all_gather : 0) + cost.reduce_scatter + cost.all_reduce);
}

StepCosts CostsOf(const SimulatedJob& job, const Spans& spans, const std::vector<ModelUnit>& units,
                  const std::vector<ShardLayout>& layouts, const SlotCounts& slots) {
  const auto seconds = [&job](const UnitWork& work) { return SecondsOf(work, job.device, job.precision); };
  const double param_size = SizeOf(job.plan.param_dtype), reduce_size = SizeOf(job.plan.reduce_dtype);
  StepCosts costs;
  costs.issue = job.issue;
  // At least one of each, even if the plan has no slots: every unit passes through a slot.
  costs.unsharded_slots = std::max(1, slots.unsharded);
  costs.gradient_slots = std::max(1, slots.gradients);
  double shard_numel = 0;
  for (size_t at = 0; at < units.size(); ++at) {
    const ModelUnit& unit = units[at];
    const double padded = layouts[at].padded_numel();
    const double reduced = job.plan.sharded() ? layouts[at].shard_numel() : padded;
    shard_numel += layouts[at].shard_numel();
    // Before a reduction the whole gradient is read once, divided, and written in the dtype of the reduction.
    const double division = job.ranks > 1 ? padded * (param_size + reduce_size) / job.device.memory_bandwidth : 0;
    UnitCost cost = {.forward = seconds(unit.forward),
                     .forward_after_inner = seconds(unit.forward_after_inner),
                     .backward = seconds(unit.backward),
                     .backward_after_inner = seconds(unit.backward_after_inner),
                     .recompute = seconds(unit.recompute),
                     .all_gather = AllGatherSeconds(job.links, spans.shard, padded * param_size),
                     .reduce_scatter = ReduceScatterSeconds(job.links, spans.shard, padded * reduce_size),
                     .all_reduce = AllReduceSeconds(job.links, spans.replica, reduced * reduce_size)};
    // The division is part of the first reduction that the gradient takes.
    (job.plan.sharded() ? cost.reduce_scatter : cost.all_reduce) += division;
    SlowBesideCollectives(job, cost);
    costs.units.push_back(cost);
  }
  costs.optimizer = shard_numel * kOptimizerBytes / job.device.memory_bandwidth;
  return costs;
}

// In "selective layer" a block that keeps everything is not computed again, so the schedule has no such event for it.
ScheduleOptions OptionsOf(const SimulatedJob& job, const std::vector<ModelUnit>& units) {
  ScheduleOptions options = ScheduleOptionsOf(static_cast<int>(units.size()), job.plan);
  for (size_t unit = 1; unit < units.size(); ++unit) {
    options.units[unit].recompute = units[unit].recompute.matmul_flops > 0;
  }
  return options;
}

double FlopsOf(const Schedule& schedule, const std::vector<ModelUnit>& units) {
  double flops = 0;
  for (const ScheduleEvent& event : schedule) {
    if (event.unit < 0) continue;
    const ModelUnit& unit = units[event.unit];
    UnitWork work;
    if (event.kind == Kind::kForward) work = unit.forward + unit.forward_after_inner;
    if (event.kind == Kind::kRecompute) work = unit.recompute;
    if (event.kind == Kind::kBackward) work = unit.backward + unit.backward_after_inner;
    flops += work.matmul_flops + work.attention_flops;
  }
  return flops;
}

// Ranks of the first shard group write; every rank reads its shard.
void AddCheckpointTimes(const SimulatedJob& job, const Spans& spans, SimulatedStep& step) {
  const double nbytes = kCheckpointBytes * step.parameters;
  const double ranks_on_host = job.ranks / job.hosts;
  step.save_seconds = nbytes / spans.shard.hosts / job.disk_write;
  step.load_seconds = nbytes / spans.shard.ranks * ranks_on_host / job.disk_read;
}

// Speeds near 0 and beyond any machine's can make numbers that no step has.
absl::Status CheckResult(const SimulatedStep& step) {
  for (const double number : {step.timeline.seconds, step.tokens_per_second, step.exposed_communication,
                              step.model_flops_utilization, step.save_seconds, step.load_seconds}) {
    if (std::isfinite(number)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the step takes ", step.timeline.seconds,
                                                   " s, wanted speeds of devices, links and disks that give a time"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CausalLmConfig> ReadModelConfig(const std::string& name_or_path) {
  const bool is_file = std::filesystem::is_regular_file(name_or_path);
  if (!is_file) {
    absl::StatusOr<CausalLmConfig> llama = CausalLmPreset("llama", name_or_path);
    if (llama.ok()) return llama;
    // The kinds of model have different preset names, so the first match is the only one.
    absl::StatusOr<CausalLmConfig> gpt2 = CausalLmPreset("gpt2", name_or_path);
    if (gpt2.ok()) return gpt2;
    return absl::NotFoundError(absl::StrCat("config \"", name_or_path, "\" is no file; ", gpt2.status().message(), "; ",
                                            llama.status().message()));
  }
  FSDP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(name_or_path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("model_type") || !json["model_type"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config ", name_or_path, " is not JSON with a model_type, wanted \"gpt2\" or \"llama\""));
  }
  return ParseCausalLmConfig(json["model_type"].get<std::string>(), text, /*notes=*/nullptr);
}

absl::StatusOr<SimulatedStep> SimulateStep(SimulatedJob job) {
  FSDP_RETURN_IF_ERROR(CheckLayout(job));
  FSDP_ASSIGN_OR_RETURN(const Spans spans, SpansOf(job));
  const bool float32 = job.precision == ComputePrecision::kFloat32;
  job.work.element_bytes = float32 ? 4 : 2;
  // With float8 the parameters still have 16 bits.
  job.plan.param_dtype = float32 ? DType::kFloat32 : DType::kBFloat16;
  job.plan.shard_ranks = spans.shard.ranks;
  FSDP_ASSIGN_OR_RETURN(const std::vector<ModelUnit> units, ModelWork(job.config, job.work));
  FSDP_RETURN_IF_ERROR(CheckSizes(job, units));
  job.plan.recompute = job.work.checkpointing == Checkpointing::kFull;

  std::vector<std::vector<ShardLayout::Entry>> parameters;
  SimulatedStep step;
  for (const ModelUnit& unit : units) {
    parameters.push_back(unit.parameters);
    step.unit_names.push_back(unit.name);
    for (const ShardLayout::Entry& parameter : unit.parameters) step.parameters += parameter.shape.numel();
  }
  const std::vector<ShardLayout> layouts = LayoutsOf(parameters, job.plan);
  const MemoryPlan memory = PlanMemory(layouts, job.plan);
  const int count = static_cast<int>(units.size());
  const Schedule schedule = StepSchedule(VisitsOf(count), job.micro_steps, OptionsOf(job, units));
  const StepCosts costs = CostsOf(job, spans, units, layouts, SlotsOf(count, job.plan));
  FSDP_ASSIGN_OR_RETURN(step.timeline, StepTime(schedule, costs));

  step.memory.fsdp = memory.DeviceBytes(job.micro_steps > 1);
  step.memory.optimizer = memory.shards;  // two moments, as large as parameters and gradients
  int64_t transient = 0;
  for (const ModelUnit& unit : units) {
    step.memory.activations += unit.kept_bytes;
    transient = std::max(transient, unit.transient_bytes);
  }
  // Only one unit is in backward at a time.
  step.memory.activations += transient;

  const double tokens = static_cast<double>(job.work.batch_size) * job.work.seq_len * job.micro_steps;
  const double seconds = step.timeline.seconds;
  step.tokens_per_second = tokens * job.ranks / seconds;
  step.exposed_communication = step.timeline.exposed / seconds;
  step.flops_per_rank = FlopsOf(schedule, units);
  step.model_flops_utilization =
      3 * ForwardFlops(units, job.work) * tokens / seconds / job.device.PeakFlops(job.precision);
  AddCheckpointTimes(job, spans, step);
  FSDP_RETURN_IF_ERROR(CheckResult(step));
  return step;
}

}  // namespace fsdp
