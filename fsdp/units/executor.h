// SPDX-License-Identifier: Apache-2.0
//
// Executor: carries schedules out. Modules report the progress of forward and backward through hooks. The executor
// plans each pass with schedule.h, from the order in which units ran in the last pass, and has schedule_runner.h run
// the plan up to the unit that is about to compute. executor.cc has the state machine.
#ifndef FSDP_FSDP_UNITS_EXECUTOR_H_
#define FSDP_FSDP_UNITS_EXECUTOR_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/options/options.h"
#include "fsdp/fsdp/schedule/schedule.h"
#include "fsdp/fsdp/units/execution_order.h"
#include "fsdp/fsdp/units/forward_orders.h"
#include "fsdp/fsdp/units/schedule_runner.h"
#include "fsdp/fsdp/units/step_gate.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/fsdp/units/unit_casts.h"
#include "fsdp/fsdp/units/unit_runtime.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// The fields of FsdpOptions that concern the executor, with the same meaning, and FSDP2's deviations.
struct ExecutorOptions {
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kBackwardPre;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;
  bool check_execution_order = false;

  // A pass may begin at any module of a unit, and then covers only the modules below it, as in PyTorch's fully_shard.
  bool passes_below_root = false;

  // Null: creates its own streams.
  std::shared_ptr<UnitStreams> streams = nullptr;
};

// One thread for each rank calls it. Its calls do not wait for the device unless their comments say so.
class Executor final : public ModuleHooks, public StepGate {
 public:
  // Sets itself as the hooks of the modules of every unit and of every bare module. `root` and `units` must outlive it.
  // Collective.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Module& root, UnitStore& units,
                                                          const ExecutorOptions& options);
  ~Executor() override;

  // The hooks issue work and do not wait for it, except at the end of a backward under FSDP2's rules, which waits for
  // the other hosts, and on a host group for its collectives. kFailedPrecondition for a unit that runs outside of a
  // pass of the root (or of any unit, see passes_below_root), while a SummonFullParamsGuard lives, and for a tape of
  // another stream than compute_stream(). Each may replace tensors by cast ones. Collective, in the order of the
  // schedule.
  absl::Status PreForward(Module& module, absl::Span<Tensor> inputs, Tape& tape) override;
  absl::Status PostForward(Module& module, absl::Span<Tensor> outputs, Tape& tape) override;
  absl::Status PreBackward(Module& module, absl::Span<Tensor> grad_outputs, Tape& tape) override;
  absl::Status PostBackward(Module& module, absl::Span<Tensor> grad_inputs, Tape& tape) override;

  // Off: backward keeps every unit's gradient local (no_sync). UnitControls can do so for single units.
  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }

  // Off: more backwards of the same step follow the next one, so the compute stream does not wait for its reductions,
  // and no unit is resharded at its end (FSDP2's set_is_last_backward).
  void set_is_last_backward(bool last) { is_last_backward_ = last; }

  // The all-gathers of the next forward wait for `event` instead of all compute issued so far (FSDP2's
  // set_post_optim_event). Used once.
  void set_post_optim_event(Event event) { post_optim_event_ = std::move(event); }

  // For a program that needs a unit's parameters outside of the schedule: Unshard issues the all-gather, WaitForUnshard
  // makes the compute stream wait for it and binds the unit's Parameters. Both do nothing if that has been done.
  // Reshard frees the unit's slot; changes that the program made to the parameters are lost. Unshard is collective.
  absl::Status Unshard(int index);
  absl::Status WaitForUnshard(int index);
  void Reshard(int index);

  // StepGate: refuses calls within a forward or backward. CheckIdle also copies replaced data into the shards
  // (writeback.h). A call that changes shards reports it (Unit::MarkShardChanged); the next pass then gathers the units
  // that were unsharded.
  absl::Status CheckBetweenPasses(std::string_view call) const override;
  absl::Status CheckIdle(std::string_view call) override;

  // After a pass that failed: waits for what was issued, reshards every unit, and discards every gradient, so that the
  // next step begins as if the pass had not been (FSDP2's reset_iter_state). kFailedPrecondition while a
  // SummonFullParamsGuard lives; errors of the streams.
  absl::Status ResetIterState();

  // The host's part at the beginning of a step that is about to be captured in a graph or replayed.
  // kFailedPrecondition, naming the unit or parameter, if a captured step would differ from an ordinary one: a unit is
  // unsharded, or a parameter has a gradient.
  absl::Status PrepareReplay();

  UnitRuntime& runtime() const { return *runtime_; }

  // The schedule of one step of `micro_steps` forwards and backwards, in the order in which units ran last.
  Schedule PlanStep(int micro_steps) const;

 private:
  Executor(Module& root, UnitStore& units, const ExecutorOptions& options);

  // The input of schedule.h, from the units' settings and controls as they are now.
  ScheduleOptions CurrentOptions() const;

  absl::Status CheckNotSummoned(std::string_view pass) const;
  absl::Status WriteBack();
  absl::StatusOr<bool> OpensForward(const Module& module) const;
  absl::Status BeginForward(Module& module, Tape& tape);
  absl::Status EnterForward(int index);
  absl::Status LeaveForward(int index);
  absl::Status LeaveUnfinished(int last);
  void EndForward();
  void ReshardAfterEvaluation();
  absl::Status EnterRecompute(int index);
  absl::Status LeaveRecompute(int index, const Module& module);
  absl::StatusOr<bool> OpensBackward(const Module& module) const;
  void SetTop(Module& module);

  absl::Status BeginBackward(Module& module);
  absl::Status EndBackward();

  absl::Status LeaveBackward(int index);
  bool RanAllModules(int index, const std::set<const Module*>& modules_run) const;
  void ForgetModulesRun();

  // A span of the compute stream around the computation of a unit's modules.
  void BeginSpan(std::string_view pass, int index);
  void EndSpan();

  Module& root_;
  UnitStore& units_;
  const ExecutorOptions options_;
  SlotCounts slots_;  // for units that are all trainable
  std::unique_ptr<UnitRuntime> runtime_;
  std::optional<ScheduleRunner> runner_;  // set by Create
  std::optional<ExecutionOrder> order_check_;

  Module* top_;                    // opened the current or last pass: root_, or a module below
  std::set<const Module*> below_;  // top_ and what is below it, if that is not root_
  ForwardOrders orders_;
  UnitCasts casts_;
  bool training_ = true;   // the current or last forward keeps what a backward needs
  std::vector<int> kept_;  // units that an evaluation left unsharded, if no pass has begun since

  bool in_pass_ = false;      // also after one that failed, until the next forward of the root
  bool in_backward_ = false;  // likewise
  bool sync_ = true;
  bool is_last_backward_ = true;
  Event post_optim_event_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_EXECUTOR_H_
