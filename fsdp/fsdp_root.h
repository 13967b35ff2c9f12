// SPDX-License-Identifier: Apache-2.0
//
// FsdpRoot: all units below the outermost module that FullyShard was applied to: their memory and their executor. Made
// once, at the root's first use; owned by the root's FsdpModule.
#ifndef FSDP_FSDP_FSDP_ROOT_H_
#define FSDP_FSDP_FSDP_ROOT_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/units/executor.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/device_layer_ops.h"

namespace fsdp {

class FsdpRoot final {
 public:
  // Names the parameters below `root`, cuts them into the units of all FsdpModules there, and lets these join. Errors
  // are those of the first call of FsdpModule's methods for the root. Collective; blocks.
  static absl::StatusOr<std::unique_ptr<FsdpRoot>> Create(FsdpModule& root);

  const FsdpModule& root() const { return root_; }
  Module& module() const { return module_; }
  const UnitStore& units() const { return *units_; }
  Executor& executor() const { return *executor_; }
  Stream& stream() const { return executor_->runtime().compute_stream(); }
  const std::shared_ptr<const LayerOps>& layer_ops() const { return layer_ops_; }
  const std::shared_ptr<UnitStore>& shared_units() const { return units_; }
  const std::shared_ptr<Executor>& shared_executor() const { return executor_; }

  // The schedule of one step of `micro_steps` micro-steps, by the order in which units ran last, and the names it uses.
  Schedule StepSchedule(int micro_steps) const { return executor_->PlanStep(micro_steps); }
  std::vector<std::string> UnitNames() const;

  // kInvalidArgument, naming `module`, its `list` ("modules_to_forward_prefetch") and the place in it, for one of
  // `modules` that is not below this root.
  absl::Status CheckPrefetch(const FsdpModule& module, std::string_view list,
                             const std::vector<FsdpModule*>& modules) const;

  // Copies the controls of `module` to unit `unit`.
  void Apply(const FsdpModule& module, int unit);

 private:
  FsdpRoot(FsdpModule& root, std::vector<FsdpModule*> members);

  absl::Status CheckMembers() const;
  RankAgreement AgreementOfMembers() const;
  absl::Status CreateUnits();
  int UnitOf(const FsdpModule& member) const;  // -1 where it has no parameters
  std::optional<std::vector<int>> UnitsOf(const std::optional<std::vector<FsdpModule*>>& modules) const;

  FsdpModule& root_;
  Module& module_;
  const std::vector<FsdpModule*> members_;  // root_ and those below, outermost first
  std::shared_ptr<UnitStore> units_;
  std::shared_ptr<const LayerOps> layer_ops_;
  std::shared_ptr<Executor> executor_;  // refers to module_ and units_
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FSDP_ROOT_H_
