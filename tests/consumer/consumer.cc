// SPDX-License-Identifier: Apache-2.0
//
// A program of another repository: shards a model over two ranks, saves it, reads it into a second model that was
// initialised differently, and prints OK when both hold the same bytes.

#include <stdlib.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp.h"
#include "fsdp/nn/linear.h"

namespace {

absl::StatusOr<std::unique_ptr<fsdp::FullyShardedDataParallel>> MakeModel(std::shared_ptr<fsdp::ProcessGroup> group,
                                                                          uint64_t seed) {
  auto linear = std::make_unique<fsdp::Linear>(5, 3, fsdp::Initializer::Normal(0, 1));
  linear->AssignNames();
  return fsdp::FullyShardedDataParallel::Wrap(std::move(linear), group, {.init_seed = seed});
}

absl::Status SaveAndLoad(const std::string& root, const std::shared_ptr<fsdp::ProcessGroup>& group) {
  const auto settings = fsdp::StateDictSettings::For(fsdp::ShardedStateDictConfig{.offload_to_cpu = true});
  FSDP_ASSIGN_OR_RETURN(const auto saved, MakeModel(group, 1));
  saved->set_state_dict_settings(settings);
  FSDP_ASSIGN_OR_RETURN(const fsdp::StateDict before, saved->GetStateDict());
  FSDP_ASSIGN_OR_RETURN(const std::string path, fsdp::SaveCheckpoint(before, root, /*step=*/1, *group));

  FSDP_ASSIGN_OR_RETURN(const auto loaded, MakeModel(group, 2));
  loaded->set_state_dict_settings(settings);
  FSDP_RETURN_IF_ERROR(
      loaded->Restore(nullptr, [&](fsdp::StateDict& wanted) { return fsdp::LoadCheckpoint(path, wanted); }));
  FSDP_ASSIGN_OR_RETURN(const fsdp::StateDict after, loaded->GetStateDict());

  const fsdp::StateKey weight = fsdp::StateKey::Model("weight");
  const fsdp::Tensor& a = before.FindTensor(weight)->shards.at(0).data;
  const fsdp::Tensor& b = after.FindTensor(weight)->shards.at(0).data;
  if (a.nbytes() != b.nbytes() || std::memcmp(a.data(), b.data(), a.nbytes()) != 0) {
    return absl::DataLossError("what was read differs from what was saved");
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  char root[] = "/tmp/fsdp_consumer.XXXXXX";
  if (mkdtemp(root) == nullptr) return 1;
  const absl::Status status =
      fsdp::RunRanks(2, [&](std::shared_ptr<fsdp::ProcessGroup> group) { return SaveAndLoad(root, group); });
  std::cout << (status.ok() ? "OK" : status.ToString()) << std::endl;
  return status.ok() ? 0 : 1;
}
