// SPDX-License-Identifier: Apache-2.0
//
// A program that is built from the installed files, without Bazel: two ranks shard a layer, save it, and verify every
// byte. Prints OK.
#include <stdlib.h>

#include <iostream>
#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/nn/linear.h"

namespace {

absl::Status SaveAndVerify(const std::string& root, const std::shared_ptr<fsdp::ProcessGroup>& group) {
  auto linear = std::make_unique<fsdp::Linear>(5, 3, fsdp::Initializer::Normal(0, 1));
  linear->AssignNames();
  FSDP_ASSIGN_OR_RETURN(const auto model, fsdp::FullyShardedDataParallel::Wrap(std::move(linear), group, {}));
  model->set_state_dict_settings(fsdp::StateDictSettings::For(fsdp::ShardedStateDictConfig{.offload_to_cpu = true}));
  FSDP_ASSIGN_OR_RETURN(const fsdp::StateDict state, model->GetStateDict());
  FSDP_ASSIGN_OR_RETURN(const std::string path, fsdp::SaveCheckpoint(state, root, /*step=*/1, *group));
  FSDP_ASSIGN_OR_RETURN(const fsdp::VerifyReport report, fsdp::VerifyCheckpoint(path));
  return report.problems.empty() ? absl::OkStatus() : absl::DataLossError("what was saved does not verify");
}

}  // namespace

int main() {
  char root[] = "/tmp/installed_program.XXXXXX";
  if (mkdtemp(root) == nullptr) return 1;
  const absl::Status status =
      fsdp::RunRanks(2, [&](std::shared_ptr<fsdp::ProcessGroup> group) { return SaveAndVerify(root, group); });
  std::cout << (status.ok() ? "OK" : status.ToString()) << std::endl;
  return status.ok() ? 0 : 1;
}
