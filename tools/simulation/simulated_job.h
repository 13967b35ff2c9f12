// SPDX-License-Identifier: Apache-2.0
//
// SimulateStep: one training step of a job on machines that are not present: the schedule, the slots and the memory of
// FSDP (fsdp/step_time/) with the work of a language model (model_work.h) on a device (device_model.h) and its links.
#ifndef FSDP_TOOLS_SIMULATION_SIMULATED_JOB_H_
#define FSDP_TOOLS_SIMULATION_SIMULATED_JOB_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/step_time/link_model.h"
#include "fsdp/fsdp/step_time/step_memory.h"
#include "fsdp/fsdp/step_time/step_time.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/tools/simulation/device_model.h"
#include "fsdp/tools/simulation/model_work.h"

namespace fsdp {

// A preset of any kind of model by its name ("llama-3.1-8b", "gpt2-124m"), or the path of a config.json. kNotFound
// lists the presets.
absl::StatusOr<CausalLmConfig> ReadModelConfig(const std::string& name_or_path);

struct SimulatedJob {
  CausalLmConfig config;
  WorkOptions work;
  int micro_steps = 1;  // of a step; all but the last do not communicate gradients

  // Seconds that the host takes to issue the computation of a unit.
  double issue = 0;

  int ranks = 8;
  int hosts = 1;  // divides the ranks
  DeviceModel device;
  ComputePrecision precision = ComputePrecision::kBFloat16;
  LinkModel links;

  // shard_ranks, sharded units, param_dtype and recompute follow from the other fields and are set by SimulateStep.
  ShardingPlan plan;
  int shard_group_size = 0;  // of the hybrid strategies; 0 is the ranks of a host

  // The speed of one host, in bytes per second, for checkpoints of model and optimizer.
  double disk_write = 2e9;
  double disk_read = 2e9;
};

struct SimulatedStep {
  double tokens_per_second = 0;      // of all ranks
  double exposed_communication = 0;  // share of the step in which the compute stream waits for communication
  StepMemory memory;
  double save_seconds = 0;
  double load_seconds = 0;

  int64_t parameters = 0;
  double flops_per_rank = 0;           // computed by the device in the step, including recomputation
  double model_flops_utilization = 0;  // 3 times the FLOP of forward, over the peak; PaLM's MFU with causal attention

  StepTimeline timeline;
  std::vector<std::string> unit_names;
};

// kInvalidArgument, naming the option, its value and what was expected, for an impossible job.
absl::StatusOr<SimulatedStep> SimulateStep(SimulatedJob job);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_SIMULATED_JOB_H_
