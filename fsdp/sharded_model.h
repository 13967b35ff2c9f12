// SPDX-License-Identifier: Apache-2.0
//
// ShardedModel: a model whose parameters are spread over ranks, as one object: its module, its units with their memory,
// and the objects that run them. FullyShardedDataParallel::Wrap, the first use of a module that FullyShard marked, and
// ManualUnits::Create each make one. Their calls between steps (model_operations.h) and functions inside fsdp/ take it
// as an argument. Not public: programs hold one of those three.
#ifndef FSDP_FSDP_SHARDED_MODEL_H_
#define FSDP_FSDP_SHARDED_MODEL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/summon_full_params.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/step_gate.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_runtime.h"
#include "fsdp/nn/module.h"
#include "fsdp/nn/tape.h"
#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

class FsdpModule;
class FullyShardedDataParallel;

// One thread for each rank uses it.
class ShardedModel final {
 public:
  // The model behind an API, for code that needs more of it than the API offers. For a FsdpModule it has to be the
  // root; the first use makes the model, which is collective.
  static ShardedModel& Of(const FullyShardedDataParallel& model);
  static absl::StatusOr<std::shared_ptr<ShardedModel>> Of(FsdpModule& module);

  // A model whose modules report the progress of a step: gives their hooks to an Executor. `module`, the root that
  // `units` were made of, must outlive it. Collective.
  static absl::StatusOr<std::shared_ptr<ShardedModel>> Create(Module& module, std::unique_ptr<UnitStore> units,
                                                              const ExecutorOptions& options);

  // A model without modules. The program reports its progress to `gate`. `module` has no parameters. `module` and
  // `gate` must outlive the result. Collective.
  static absl::StatusOr<std::shared_ptr<ShardedModel>> CreateManual(Module& module, std::unique_ptr<UnitStore> units,
                                                                    const SlotCounts& slots, StepGate& gate);

  Module& module() const { return module_; }
  UnitStore& units() const { return *units_; }
  UnitRuntime& runtime() const { return executor_ != nullptr ? executor_->runtime() : *manual_runtime_; }
  StepGate& gate() const { return executor_ != nullptr ? *executor_ : *manual_gate_; }

  // The stream of forward, backward and the optimizer.
  Stream& stream() const { return runtime().compute_stream(); }

  // This rank's slice of each parameter, in the order of units.
  std::vector<ShardedParameter*> parameters() const;

  // The rest is for models with modules.

  bool has_modules() const { return executor_ != nullptr; }
  Executor& executor() const { return *executor_; }
  const std::shared_ptr<const LayerOps>& layer_ops() const { return layer_ops_; }

  Tape NewTape(bool training) const { return Tape(stream(), *layer_ops_, training); }

  // The schedule of one step of `micro_steps` micro-steps, by the order in which units ran last, and the names it uses.
  Schedule StepSchedule(int micro_steps) const { return executor_->PlanStep(micro_steps); }
  std::vector<std::string> UnitNames() const { return units_->ScheduledNames(); }

  // Binds whole parameters, while the guard lives, for the units of `module`, a part of this model, and below.
  // kFailedPrecondition within a forward or backward. Collective; blocks.
  absl::StatusOr<std::unique_ptr<SummonFullParamsGuard>> SummonFullParams(Module& module,
                                                                          const SummonFullParamsOptions& options);

  // PyTorch's apply, for initialising a model in place. Calls `fn` for every module at and below `module`, children
  // first, while the parameters of the units around it are bound whole; values that `fn` writes to them stay. Only the
  // units on one path from the root are whole at the same time. The first error of any rank is returned on all; after
  // it `fn` is not called again. kFailedPrecondition within a forward or backward and while a SummonFullParamsGuard
  // lives. Collective; blocks.
  absl::Status Apply(Module& module, const std::function<absl::Status(Module&)>& fn);

 private:
  ShardedModel(Module& module, std::unique_ptr<UnitStore> units);

  Module& module_;
  std::unique_ptr<UnitStore> units_;
  std::shared_ptr<const LayerOps> layer_ops_;

  // One of the two; it refers to module_ and units_.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<UnitRuntime> manual_runtime_;
  StepGate* manual_gate_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_SHARDED_MODEL_H_
