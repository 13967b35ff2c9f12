// SPDX-License-Identifier: Apache-2.0
//
// simulate: predicts the speed and memory of a training step on a cluster that is not present, from its schedule.
// docs/simulate.md describes the model and the accuracy of the numbers.
//
//   simulate --config=llama-3.1-8b --ranks=128 --hosts=16 --link=3200gbit --device=h100 --json
//   simulate --config=llama-3.1-8b --ranks=8,16,32,64 --link=3200gbit --html=ranks.html
//
// Exit status: 0; 1 when a file cannot be read or written; 2 for a wrong command line.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/problem_json.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/tools/cli/output_file.h"
#include "fsdp/tools/simulation/bandwidth.h"
#include "fsdp/tools/simulation/published_runs.h"
#include "fsdp/tools/simulation/simulated_job.h"
#include "fsdp/tools/simulation/simulation_report.h"
#include "fsdp/tools/simulation/small_file.h"

namespace fsdp {

// Numbers separated by commas.
struct RanksFlag {
  std::vector<int> values;
};

bool AbslParseFlag(absl::string_view text, RanksFlag* flag, std::string* error) {
  flag->values.clear();
  for (const absl::string_view number : absl::StrSplit(text, ',')) {
    if (absl::SimpleAtoi(number, &flag->values.emplace_back())) continue;
    *error = "expected numbers separated by commas, such as 8,16,32";
    return false;
  }
  return true;
}

std::string AbslUnparseFlag(const RanksFlag& flag) { return absl::StrJoin(flag.values, ","); }

}  // namespace fsdp

ABSL_FLAG(std::string, config, "llama-3.1-8b",
          "a Hugging Face config.json, or a preset such as llama-3.1-70b, gpt2-124m");
ABSL_FLAG(fsdp::RanksFlag, ranks, {{8}},
          "ranks of the job, one on each device; several numbers, such as 8,16,32, are compared in a table");
ABSL_FLAG(int, hosts, 1,
          "hosts with equally many ranks; of several numbers of ranks those of the first, and the others "
          "have hosts of the same size");
ABSL_FLAG(std::string, link, "400gbit", "all links of a host to the others together, in each direction");
ABSL_FLAG(double, link_latency, 14e-6, "seconds that a step of a ring takes between hosts in addition to its bytes");
ABSL_FLAG(std::string, local_link, "", "from a rank to the next on its host; default: the device's own");
ABSL_FLAG(double, local_link_latency, 3.4e-6, "as --link_latency, within a host");
ABSL_FLAG(double, collective_latency, 8.4e-6, "seconds that any collective takes in addition to its steps");
ABSL_FLAG(std::string, all_reduce, "auto", "auto, ring or tree");
ABSL_FLAG(std::string, device, "h100", "a100, h100, h100-500w or h200");
ABSL_FLAG(double, achievable, 0, "share of the device's peak that matrix products achieve; 0: the device's preset");
ABSL_FLAG(double, flops, 0, "of a device without preset: FLOP/s that matrix products and attention achieve");
ABSL_FLAG(std::string, memory_bandwidth, "", "of a device without preset, such as 20GB/s; with --flops");
ABSL_FLAG(std::string, dtype, "bfloat16", "dtype in which linear layers compute: float32, bfloat16 or float8");
ABSL_FLAG(std::string, reduce_dtype, "float32", "dtype in which gradients are reduced: float32 or bfloat16");
ABSL_FLAG(std::string, sharding_strategy, "full_shard",
          "full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2; several, such as "
          "full_shard,no_shard, are compared: which fits first");
ABSL_FLAG(int, shard_group_size, 0, "ranks of a shard group of the hybrid strategies; 0: the ranks of a host");
ABSL_FLAG(std::string, api, "fsdp1", "fsdp1 or fsdp2: which layout parameters have");
ABSL_FLAG(int64_t, batch_size, 1, "rows per rank and micro-step");
ABSL_FLAG(int64_t, seq_len, 0, "tokens per row; 0: 8192, or as many as the model takes");
ABSL_FLAG(int, grad_accum, 1, "micro-steps per step");
ABSL_FLAG(std::string, activation_checkpointing, "none", "none, selective_op, selective_layer or full");
ABSL_FLAG(std::string, kernels, "eager", "eager: each operation by itself; fused: as torch.compile");
ABSL_FLAG(bool, fused_attention, true, "attention as one kernel, without scores in memory");
ABSL_FLAG(int64_t, loss_chunks, 0,
          "the head and the loss in so many chunks of rows, as train_gpt; 0: all logits are in memory");
ABSL_FLAG(std::string, backward_prefetch, "pre", "pre, post or none");
ABSL_FLAG(double, issue_seconds, 0, "seconds that the host takes to issue the computation of a unit");
ABSL_FLAG(bool, forward_prefetch, false, "all-gather the next unit before a forward");
ABSL_FLAG(bool, limit_all_gathers, true, "share slots; off: one for each unit");
ABSL_FLAG(std::string, disk, "2GB/s", "speed at which a host writes a checkpoint");
ABSL_FLAG(std::string, disk_read, "", "speed at which a host reads a checkpoint; default: --disk");
ABSL_FLAG(bool, json, false, "print one JSON object");
ABSL_FLAG(std::string, html, "", "also make this file: one page with speed, time and memory for each number of ranks");
ABSL_FLAG(std::string, trace, "", "write the timeline of the step to this file, as Chrome trace JSON");
ABSL_FLAG(std::string, published, "", "only print a file of published runs with their simulated values");

namespace fsdp {
namespace {

constexpr char kUsage[] =
    "simulate --config=FILE|PRESET --ranks=N[,N...] --hosts=H --link=BANDWIDTH [flags] [--json]\n"
    "simulate --published=FILE\n"
    "\n"
    "Predicts a training step on a cluster that is not present: tokens a second, communication that is not hidden, "
    "memory of a rank, and the time of a save and a load.\n"
    "\n"
    "examples:\n"
    "  simulate --config=llama-3.1-8b --ranks=128 --hosts=16 --link=3200gbit\n"
    "  simulate --config=llama-3.1-8b --ranks=8,16,32,64 --html=ranks.html\n"
    "  simulate --ranks=8,16,32,64 --sharding_strategy=full_shard,shard_grad_op,no_shard\n"
    "  simulate --config=gpt2-124m --ranks=8 --device=a100 --trace=step.json\n"
    "\n"
    "exit status: 0 done; 1 a file cannot be read or written; 2 the command line is wrong.\n"
    "environment: COLUMNS, the width of this text.\n";

absl::StatusOr<DeviceModel> DeviceOf(ComputePrecision precision) {
  const double flops = absl::GetFlag(FLAGS_flops), achievable = absl::GetFlag(FLAGS_achievable);
  const std::string bandwidth = absl::GetFlag(FLAGS_memory_bandwidth);
  // Half of a device would silently be filled from the preset.
  if ((flops != 0) != !bandwidth.empty()) {
    return absl::InvalidArgumentError("--flops and --memory_bandwidth are of one device: wanted both or neither");
  }
  DeviceModel device;
  if (flops != 0) {
    if (!(flops > 0) || !std::isfinite(flops)) {
      return absl::InvalidArgumentError(absl::StrCat("--flops is ", flops, ", wanted a finite number above 0"));
    }
    FSDP_ASSIGN_OR_RETURN(device.memory_bandwidth, ParseBandwidth(bandwidth));
    device.name = "given by --flops";
    device.float32_flops = device.bfloat16_flops = device.float8_flops = device.attention_flops = flops;
    // One number for all rates, as for a processor without tensor cores: ranks on a host meet in its memory.
    device.local_bandwidth = device.memory_bandwidth;
  } else {
    FSDP_ASSIGN_OR_RETURN(device, DevicePreset(absl::GetFlag(FLAGS_device), precision));
  }
  if (achievable != 0) device.achievable = achievable;
  return device;
}

absl::Status SetLinks(SimulatedJob& job) {
  FSDP_ASSIGN_OR_RETURN(job.links.host_bandwidth, ParseBandwidth(absl::GetFlag(FLAGS_link)));
  // The device knows its links within a host; the flag overrides that.
  job.links.local_bandwidth = job.device.local_bandwidth;
  if (const std::string local = absl::GetFlag(FLAGS_local_link); !local.empty()) {
    FSDP_ASSIGN_OR_RETURN(job.links.local_bandwidth, ParseBandwidth(local));
  }
  job.links.host_latency = absl::GetFlag(FLAGS_link_latency);
  job.links.local_latency = absl::GetFlag(FLAGS_local_link_latency);
  job.links.base_latency = absl::GetFlag(FLAGS_collective_latency);
  FSDP_ASSIGN_OR_RETURN(job.links.all_reduce, ParseAllReduceAlgorithm(absl::GetFlag(FLAGS_all_reduce)));
  FSDP_ASSIGN_OR_RETURN(job.disk_write, ParseBandwidth(absl::GetFlag(FLAGS_disk)));
  // Without --disk_read a disk reads as fast as it writes.
  job.disk_read = job.disk_write;
  if (const std::string read = absl::GetFlag(FLAGS_disk_read); !read.empty()) {
    FSDP_ASSIGN_OR_RETURN(job.disk_read, ParseBandwidth(read));
  }
  return absl::OkStatus();
}

absl::Status SetPlan(SimulatedJob& job) {
  const std::string api = absl::GetFlag(FLAGS_api);
  if (api != "fsdp1" && api != "fsdp2") {
    return absl::InvalidArgumentError(absl::StrCat("--api=", api, ": expected fsdp1 or fsdp2"));
  }
  FSDP_ASSIGN_OR_RETURN(job.plan.reduce_dtype, ParseReduceDType(absl::GetFlag(FLAGS_reduce_dtype)));
  // The simulation sees the two interfaces only as two layouts of shards.
  job.plan.layout = api == "fsdp1" ? LayoutKind::kFlat : LayoutKind::kDim0;
  FSDP_ASSIGN_OR_RETURN(job.plan.backward_prefetch, ParseBackwardPrefetch(absl::GetFlag(FLAGS_backward_prefetch)));
  job.plan.forward_prefetch = absl::GetFlag(FLAGS_forward_prefetch);
  job.plan.limit_all_gathers = absl::GetFlag(FLAGS_limit_all_gathers);
  job.shard_group_size = absl::GetFlag(FLAGS_shard_group_size);
  return absl::OkStatus();
}

absl::Status SetWork(SimulatedJob& job) {
  job.work.batch_size = absl::GetFlag(FLAGS_batch_size);
  job.work.seq_len = absl::GetFlag(FLAGS_seq_len);
  if (job.work.seq_len == 0) {
    const std::optional<SequenceLimit> limit = SequenceLimitOf(job.config);
    // GPT-2 has a table of positions and so a limit; Llama does not.
    job.work.seq_len = limit.has_value() ? limit->seq_len : 8192;
  }
  FSDP_ASSIGN_OR_RETURN(job.work.checkpointing, ParseCheckpointing(absl::GetFlag(FLAGS_activation_checkpointing)));
  FSDP_ASSIGN_OR_RETURN(job.work.kernels, ParseKernelStyle(absl::GetFlag(FLAGS_kernels)));
  job.work.fused_attention = absl::GetFlag(FLAGS_fused_attention);
  job.work.loss_chunks = absl::GetFlag(FLAGS_loss_chunks);
  return absl::OkStatus();
}

std::vector<std::string> StrategyNames() { return absl::StrSplit(absl::GetFlag(FLAGS_sharding_strategy), ','); }

absl::StatusOr<SimulatedJob> JobOfFlags() {
  SimulatedJob job;
  job.ranks = absl::GetFlag(FLAGS_ranks).values.front();
  job.hosts = absl::GetFlag(FLAGS_hosts);
  job.issue = absl::GetFlag(FLAGS_issue_seconds);
  job.micro_steps = absl::GetFlag(FLAGS_grad_accum);
  FSDP_ASSIGN_OR_RETURN(job.precision, ParseComputePrecision(absl::GetFlag(FLAGS_dtype)));
  FSDP_ASSIGN_OR_RETURN(job.device, DeviceOf(job.precision));
  FSDP_ASSIGN_OR_RETURN(job.config, ReadModelConfig(absl::GetFlag(FLAGS_config)));
  // In this order: the plan and the work use the device and the config.
  FSDP_RETURN_IF_ERROR(SetLinks(job));
  FSDP_RETURN_IF_ERROR(SetPlan(job));
  FSDP_RETURN_IF_ERROR(SetWork(job));
  return job;
}

// Simulates `job` for each number of ranks, on hosts of the size that the first has.
absl::Status SimulateRanks(SimulatedJob job, std::vector<SimulatedRun>& runs) {
  const int on_host = job.hosts > 0 ? std::max(1, job.ranks / job.hosts) : 1;
  const std::vector<int> numbers = absl::GetFlag(FLAGS_ranks).values;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) {
      if (numbers[i] > on_host && numbers[i] % on_host != 0) {
        return absl::InvalidArgumentError(absl::StrCat("--ranks has ", numbers[i], ", expected a number up to ",
                                                       on_host, ", the ranks of a host, or a multiple of it"));
      }
      job.ranks = numbers[i];
      job.hosts = std::max(1, numbers[i] / on_host);
    }
    SimulatedRun run = {job, {}, {}};
    FSDP_ASSIGN_OR_RETURN(run.step, SimulateStep(job));
    if (!Fits(job, run.step)) run.fitting = JobsThatFit(job);
    runs.push_back(std::move(run));
  }
  return absl::OkStatus();
}

// The job of the flags with each strategy and number of ranks.
absl::StatusOr<std::vector<SimulatedRun>> SimulateAll() {
  std::vector<ShardingStrategy> strategies;
  for (const std::string& name : StrategyNames()) {
    FSDP_ASSIGN_OR_RETURN(const ShardingStrategy strategy, ParseShardingStrategy(name));
    if (std::find(strategies.begin(), strategies.end(), strategy) == strategies.end()) strategies.push_back(strategy);
  }
  FSDP_ASSIGN_OR_RETURN(SimulatedJob job, JobOfFlags());
  std::vector<SimulatedRun> runs;
  for (const ShardingStrategy strategy : strategies) {
    job.plan.strategy = strategy;
    FSDP_RETURN_IF_ERROR(SimulateRanks(job, runs));
  }
  return runs;
}

// With --json an error is an object too.
void PrintProblem(const absl::Status& status) {
  if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(status.code(), std::string(status.message())));
}

int Refuse(const absl::Status& status) {
  PrintProblem(status);
  return ReportUsageError("simulate", status);
}

int Fail(const absl::Status& status) {
  PrintProblem(status);
  PrintError("simulate: %s\n", status.message());
  return kExitFailed;
}

int PrintPublished(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return Fail(Annotate(text.status(), "--published"));
  const absl::StatusOr<PublishedRuns> runs = ParsePublishedRuns(*text);
  if (!runs.ok()) return Fail(runs.status());
  const absl::StatusOr<std::string> table = PublishedTable(*runs);
  if (!table.ok()) return Fail(table.status());
  Print("%s", *table);
  return kExitDone;
}

// Checked before anything is read. A preset is no path, and adds nothing.
absl::Status CheckOutputs() {
  InputPaths inputs;
  inputs.Add(absl::GetFlag(FLAGS_config));
  for (const auto& [flag, path] :
       {std::pair("--trace=", absl::GetFlag(FLAGS_trace)), {"--html=", absl::GetFlag(FLAGS_html)}}) {
    if (path.empty()) continue;
    FSDP_RETURN_IF_ERROR(
        Annotate(CheckOutput(path, inputs, {.may_lie_beside_models = true}), absl::StrCat(flag, path)));
  }
  return absl::OkStatus();
}

absl::Status WriteFiles(const std::vector<SimulatedRun>& runs) {
  if (const std::string path = absl::GetFlag(FLAGS_trace); !path.empty()) {
    const SimulatedStep& step = runs.front().step;
    FSDP_RETURN_IF_ERROR(
        Annotate(WriteOutputFile(TimelineJson(step.timeline, step.unit_names), path), absl::StrCat("--trace=", path)));
  }
  if (const std::string path = absl::GetFlag(FLAGS_html); !path.empty()) {
    FSDP_RETURN_IF_ERROR(Annotate(WriteOutputFile(SimulationPage(absl::GetFlag(FLAGS_config), runs), path),
                                  absl::StrCat("--html=", path)));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks() {
  constexpr size_t kMost = 16;
  const size_t count = absl::GetFlag(FLAGS_ranks).values.size();
  if (count > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks has ", count, " numbers, expected at most ", kMost));
  }
  if ((count > 1 || StrategyNames().size() > 1) && !absl::GetFlag(FLAGS_trace).empty()) {
    return absl::InvalidArgumentError("--trace is of one step: expected one number in --ranks, and one strategy");
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (const std::optional<int> status = ParseFlags(argc, argv, kUsage)) return *status;
  if (const std::string path = absl::GetFlag(FLAGS_published); !path.empty()) {
    const bool is_table =
        !absl::GetFlag(FLAGS_json) && absl::GetFlag(FLAGS_html).empty() && absl::GetFlag(FLAGS_trace).empty();
    return is_table
               ? PrintPublished(path)
               : Refuse(absl::InvalidArgumentError(
                     "--published makes a table of text only: expected none of --json, --html and --trace with it"));
  }
  if (const absl::Status status = CheckRanks(); !status.ok()) return Refuse(status);
  if (const absl::Status status = CheckOutputs(); !status.ok()) return Fail(status);
  const absl::StatusOr<std::vector<SimulatedRun>> runs = SimulateAll();
  // Every error here is a job that cannot be, and so an error of the flags.
  if (!runs.ok()) return Refuse(runs.status());
  // Before the result is printed, so that a failure has no output that looks complete.
  if (const absl::Status status = WriteFiles(*runs); !status.ok()) return Fail(status);
  Print("%s", absl::GetFlag(FLAGS_json) ? SimulationJson(*runs) : SimulationText(*runs));
  return kExitDone;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::FinishOutput("simulate", fsdp::Main(argc, argv)); }
