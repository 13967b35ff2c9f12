// SPDX-License-Identifier: Apache-2.0
//
// Executor: carries schedules out. Modules tell it, through hooks, where forward and backward are; it plans each pass
// with schedule.h from the order that the last one took, and runs the plan up to the unit that is about to compute.
// Where modules run in another order than planned it unshards on demand for the rest of that pass, and learns the new
// order.
#ifndef FSDP_FSDP_EXECUTOR_H_
#define FSDP_FSDP_EXECUTOR_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/schedule.h"
#include "fsdp/unit.h"
#include "fsdp/unit_runtime.h"
#include "nn/module.h"

namespace fsdp {

class Executor final : public ModuleHooks {
 public:
  // Sets itself as the hooks of the root and of every unit's module. `root` and `units` must outlive it.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(Module& root, const UnitStore& units,
                                                          const FsdpOptions& options);
  ~Executor() override;

  absl::Status PreForward(Module& module, Tensor& input, Tape& tape) override;
  absl::Status PostForward(Module& module, Tensor& output, Tape& tape) override;
  absl::Status PreBackward(Module& module, Tensor& grad_output, Tape& tape) override;
  absl::Status PostBackward(Module& module, Tensor& grad_input, Tape& tape) override;

  bool sync() const { return sync_; }
  void set_sync(bool sync) { sync_ = sync; }

  UnitRuntime& runtime() const { return *runtime_; }

  // Waits for all work; kFailedPrecondition, naming `call`, within a forward or backward. For calls that look at or
  // change parameters between steps.
  absl::Status CheckIdle(std::string_view call);

  // One step in the order that the last pass took.
  Schedule PlanStep(int micro_steps) const;

 private:
  Executor(Module& root, const UnitStore& units, const FsdpOptions& options);

  absl::Status CheckNotSummoned(std::string_view pass) const;
  void BeginPass(Schedule plan);
  absl::Status EnterUnit(const ScheduleEvent& compute, const Schedule& on_demand);
  absl::Status LeaveUnit(int unit, const Schedule& on_demand);
  absl::Status RunUntil(size_t end);
  absl::Status Run(const ScheduleEvent& event);
  void EndPass();
  void EndBackward();
  void Reshard(int unit);

  Module& root_;
  const UnitStore& units_;
  ScheduleOptions schedule_options_;
  std::unique_ptr<UnitRuntime> runtime_;

  std::vector<UnitVisit> expected_;  // by the last complete forward
  std::vector<UnitVisit> visits_;    // by the current or last forward
  std::vector<bool> unsharded_;      // by unit, as issued so far

  Schedule plan_;           // of the current pass
  size_t next_ = 0;         // first event of plan_ not yet run
  bool following_ = false;  // the pass has kept to plan_ so far
  bool in_pass_ = false;
  bool sync_ = true;
  DType input_dtype_ = DType::kFloat32;  // of the root's input, to which its gradient is cast back
};

}  // namespace fsdp

#endif  // FSDP_FSDP_EXECUTOR_H_
