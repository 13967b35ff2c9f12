// SPDX-License-Identifier: Apache-2.0
//
// The cost of sharding in a training step, on the host device.
//
//   bazel run //fsdp:step_benchmark [-- --rounds=15] [--placement]
//
// One rank: a step of FSDP against a step of the bare model; 1.00 is the goal. Two ranks as threads: a step of FSDP
// against its two parts, the same compute without communication (two bare models side by side) and the same
// collectives without compute; hidden is the part of the communication that the step did not wait for,
// (compute + communication - step) / communication. Rounds are interleaved and medians printed, since other programs
// disturb both sides alike. --placement instead: two ranks under FullyShard, which cuts every parameter on dimension 0,
// or matrices on dimension 1 (shard_placement_fn); a step, and the unshards of all units one after another.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/flags/flag.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_runtime.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/module_names.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/ops.h"

ABSL_FLAG(int, rounds, 15, "of each measurement, at least 1; medians are printed");
ABSL_FLAG(bool, placement, false, "compare dimensions of shard_placement_fn instead");

namespace fsdp {
namespace {

constexpr int kRows = 4;
constexpr int kSeqLen = 128;
constexpr int kWarmUp = 2;

Gpt2Config BenchmarkConfig() {
  Gpt2Config config;
  config.vocab_size = 512;
  config.n_positions = kSeqLen;
  config.n_embd = 256;
  config.n_layer = 4;
  config.n_head = 4;
  return config;
}

using Step = std::function<absl::Status()>;

// The same step for all models that are compared: forward, loss, backward, update, and a wait for the device.
absl::Status TrainStep(Module& module, AdamW& optimizer, const LayerOps& ops, Stream& stream) {
  Device& device = stream.device();
  FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(device, DType::kInt32, {kRows, kSeqLen}));
  FSDP_ASSIGN_OR_RETURN(const Tensor targets, Tensor::Empty(device, DType::kInt32, {kRows * kSeqLen}));
  for (int i = 0; i < kRows * kSeqLen; ++i) {
    tokens.data_as<int32_t>()[i] = i * i % 512;
    targets.data_as<int32_t>()[i] = i % 512;
  }
  Tape tape(stream, ops);
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, module.Forward(tokens, tape));
  FSDP_RETURN_IF_ERROR(loss.Forward(logits, targets, tape).status());
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, loss.Backward(1.0f, tape));
  FSDP_RETURN_IF_ERROR(module.Backward(grad, tape).status());
  FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
  return stream.Synchronize();
}

// A model that is not sharded.
struct Bare {
  std::unique_ptr<Module> module;
  std::shared_ptr<const LayerOps> ops;
  std::vector<std::unique_ptr<ShardedParameter>> parameters;
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<Stream> stream;

  static absl::StatusOr<Bare> Make(Device& device) {
    Bare bare;
    FSDP_ASSIGN_OR_RETURN(bare.module, MakeGpt2(BenchmarkConfig()));
    bare.module->AssignNames();
    FSDP_RETURN_IF_ERROR(bare.module->Materialize(device, 0));
    FSDP_ASSIGN_OR_RETURN(bare.ops, LayerOpsFor(device));
    FSDP_ASSIGN_OR_RETURN(bare.parameters, UnshardedParameters(*bare.module, device));
    std::vector<ShardedParameter*> pointers;
    for (const auto& parameter : bare.parameters) pointers.push_back(parameter.get());
    bare.optimizer = std::make_unique<AdamW>(pointers, AdamWOptions{});
    FSDP_ASSIGN_OR_RETURN(bare.stream, device.CreateStream("bare"));
    return bare;
  }

  absl::Status Run() {
    for (const auto& parameter : parameters) stream->device().ops().Zero(parameter->grad, *stream);
    return TrainStep(*module, *optimizer, *ops, *stream);
  }
};

// The collectives of a full_shard step, in its order, and nothing between them.
absl::Status CommunicationAlone(const UnitStore& units, UnitRuntime& runtime, const Schedule& schedule) {
  using Kind = ScheduleEvent::Kind;
  for (const ScheduleEvent& event : schedule) {
    if (event.kind == Kind::kAllGather) FSDP_RETURN_IF_ERROR(runtime.Unshard(event.unit));
    if (event.kind == Kind::kBackward) {
      FSDP_RETURN_IF_ERROR(runtime.gradients().Bind(event.unit, GradientReduction::Sync::kReduce));
      runtime.gradients().Unbind(event.unit, GradientReduction::Sync::kReduce);
    }
    if (event.kind == Kind::kReshard) runtime.Reshard(event.unit);
    if (event.kind == Kind::kReduceScatter) FSDP_RETURN_IF_ERROR(runtime.gradients().ReduceScatter(event.unit));
  }
  for (const auto& unit : units.units()) {
    for (const auto& parameter : unit->sharded_parameters) parameter->has_grad = false;
  }
  return runtime.Synchronize();
}

// Median seconds of each step, rounds interleaved; all ranks call it alike.
absl::StatusOr<std::vector<double>> Medians(ProcessGroup& group, const std::vector<Step>& steps, int rounds) {
  std::vector<std::vector<double>> seconds(steps.size());
  for (int round = 0; round < kWarmUp + rounds; ++round) {
    for (size_t i = 0; i < steps.size(); ++i) {
      FSDP_RETURN_IF_ERROR(group.AllGatherObject("start").status());
      const auto start = std::chrono::steady_clock::now();
      FSDP_RETURN_IF_ERROR(steps[i]());
      FSDP_RETURN_IF_ERROR(group.AllGatherObject("end").status());
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round >= kWarmUp) seconds[i].push_back(took.count());
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& all : seconds) {
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    medians.push_back(all[all.size() / 2]);
  }
  return medians;
}

absl::Status Compare(std::shared_ptr<ProcessGroup> group, int rounds) {
  FsdpOptions options;
  options.auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>();
  FSDP_ASSIGN_OR_RETURN(Bare bare, Bare::Make(*group->device()));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(BenchmarkConfig()));
  FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
  AdamW optimizer(model->parameters(), {});
  const Step sharded = [&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(TrainStep(model->module(), optimizer, *bare.ops, model->stream()));
    optimizer.ZeroGrad();
    return absl::OkStatus();
  };
  std::vector<Step> steps{[&] { return bare.Run(); }, sharded};

  std::unique_ptr<Module> still;
  std::unique_ptr<UnitStore> units;
  std::unique_ptr<UnitRuntime> runtime;
  if (group->size() > 1) {
    FSDP_ASSIGN_OR_RETURN(still, MakeGpt2(BenchmarkConfig()));
    still->AssignNames();
    FSDP_ASSIGN_OR_RETURN(Partition partition, Partition::ByPolicy(*still, options));
    std::vector<UnitSettings> settings;
    for (const UnitModule& unit : partition.units) settings.push_back(UnitSettingsOf(options, {}, unit.name.empty()));
    std::vector<UnitSettings> bare(partition.bare.size());
    FSDP_ASSIGN_OR_RETURN(units, UnitStore::Create(std::move(partition), {.units = settings, .bare = bare}, group, {}));
    FSDP_ASSIGN_OR_RETURN(runtime, UnitRuntime::Create(*units, MemoryPlan::Of(*units, model->memory_plan().slots)));
    steps.push_back([&] { return CommunicationAlone(*units, *runtime, model->StepSchedule(1)); });
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<double> seconds, Medians(*group, steps, rounds));
  if (group->rank() != 0) return absl::OkStatus();
  if (group->size() == 1) {
    std::printf("1 rank   bare %.2f ms  fsdp %.2f ms  ratio %.3f\n", 1e3 * seconds[0], 1e3 * seconds[1],
                seconds[1] / seconds[0]);
  } else {
    std::printf("%d ranks  compute %.2f ms  communication %.2f ms  fsdp %.2f ms  hidden %.0f %%\n", group->size(),
                1e3 * seconds[0], 1e3 * seconds[2], 1e3 * seconds[1],
                100 * (seconds[0] + seconds[2] - seconds[1]) / seconds[2]);
  }
  return absl::OkStatus();
}

// A model under FullyShard whose matrices are cut on `dim`.
struct Placed {
  std::unique_ptr<Module> module;
  std::vector<FsdpModule*> units;  // the root last
  std::unique_ptr<AdamW> optimizer;
  std::shared_ptr<const LayerOps> ops;
  Stream* stream = nullptr;

  static absl::StatusOr<Placed> Make(const std::shared_ptr<ProcessGroup>& group, int dim) {
    Placed placed;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(placed.module, MakeGpt2(BenchmarkConfig()));
    FullyShardOptions options;
    options.shard_placement_fn = [dim](const Parameter& parameter) -> std::optional<int> {
      return parameter.shape.rank() > dim ? dim : 0;
    };
    FSDP_ASSIGN_OR_RETURN(std::vector<Module*> modules, ModulesByName(*placed.module, {"transformer.h.*"}));
    modules.push_back(placed.module.get());
    for (Module* module : modules) {
      FSDP_ASSIGN_OR_RETURN(placed.units.emplace_back(), FullyShard(*module, mesh, options));
    }
    FSDP_ASSIGN_OR_RETURN(const auto parameters, placed.units.back()->parameters());
    placed.optimizer = std::make_unique<AdamW>(parameters, AdamWOptions{});
    FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*placed.units.back()));
    placed.ops = model->layer_ops();
    placed.stream = &model->stream();
    return placed;
  }

  absl::Status Run() {
    FSDP_RETURN_IF_ERROR(TrainStep(*module, *optimizer, *ops, *stream));
    optimizer->ZeroGrad();
    return absl::OkStatus();
  }

  absl::Status UnshardAll() {
    for (FsdpModule* unit : units) {
      FSDP_RETURN_IF_ERROR(unit->Unshard());
      FSDP_RETURN_IF_ERROR(unit->Reshard());
    }
    return stream->Synchronize();
  }
};

absl::Status ComparePlacements(const std::shared_ptr<ProcessGroup>& group, int rounds) {
  FSDP_ASSIGN_OR_RETURN(Placed rows, Placed::Make(group, 0));
  FSDP_ASSIGN_OR_RETURN(Placed columns, Placed::Make(group, 1));
  const std::vector<Step> steps{[&] { return rows.Run(); }, [&] { return columns.Run(); },
                                [&] { return rows.UnshardAll(); }, [&] { return columns.UnshardAll(); }};
  FSDP_ASSIGN_OR_RETURN(const std::vector<double> seconds, Medians(*group, steps, rounds));
  if (group->rank() != 0) return absl::OkStatus();
  std::printf("%d ranks  step: dim 0 %.2f ms  dim 1 %.2f ms  unshards: dim 0 %.2f ms  dim 1 %.2f ms\n", group->size(),
              1e3 * seconds[0], 1e3 * seconds[1], 1e3 * seconds[2], 1e3 * seconds[3]);
  return absl::OkStatus();
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const std::optional<int> usage =
      fsdp::ParseFlags(argc, argv, "step_benchmark [flags]: what sharding costs a training step on the host");
  if (usage) return *usage;
  const int rounds = std::max(1, absl::GetFlag(FLAGS_rounds));
  const bool placement = absl::GetFlag(FLAGS_placement);
  for (const int ranks : placement ? std::vector<int>{2} : std::vector<int>{1, 2}) {
    const absl::Status status = fsdp::RunRanks(
        ranks,
        [&](std::shared_ptr<fsdp::ProcessGroup> group) {
          return placement ? fsdp::ComparePlacements(group, rounds) : fsdp::Compare(group, rounds);
        },
        absl::Minutes(10));
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
