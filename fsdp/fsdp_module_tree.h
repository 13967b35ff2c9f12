// SPDX-License-Identifier: Apache-2.0
//
// FsdpModuleTree: a module that FullyShard made the root, with the FsdpModules below it. Made at the root's first use
// and owned by the root's FsdpModule: it makes their ShardedModel, and passes each one's controls on to its unit.
#ifndef FSDP_FSDP_FSDP_MODULE_TREE_H_
#define FSDP_FSDP_FSDP_MODULE_TREE_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/rank_agreement.h"

namespace fsdp {

class FsdpModule;

class FsdpModuleTree final {
 public:
  // Names the parameters below `root`, cuts them into the units of all FsdpModules there, and lets these join. Returns
  // the errors of the first call of FsdpModule's methods for the root. Collective; blocks.
  static absl::StatusOr<std::unique_ptr<FsdpModuleTree>> Create(FsdpModule& root);

  const std::shared_ptr<ShardedModel>& model() const { return model_; }

  // kInvalidArgument, naming `module`, its `list` ("modules_to_forward_prefetch") and the place in it, for one of
  // `modules` that is not below this root.
  absl::Status CheckPrefetch(const FsdpModule& module, std::string_view list,
                             const std::vector<FsdpModule*>& modules) const;

  // Copies the controls of `module`, one of the tree, to its unit.
  void Apply(const FsdpModule& module);

 private:
  FsdpModuleTree(FsdpModule& root, std::vector<FsdpModule*> members);

  absl::Status CheckMembers() const;
  RankAgreement AgreementOfMembers() const;
  absl::StatusOr<std::unique_ptr<UnitStore>> CreateUnits() const;

  FsdpModule& root_;
  Module& module_;
  const std::vector<FsdpModule*> members_;  // root_ and those below, outermost first
  std::shared_ptr<ShardedModel> model_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_FSDP_MODULE_TREE_H_
