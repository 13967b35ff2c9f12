// SPDX-License-Identifier: Apache-2.0
//
// A program that uses Abseil itself and passes its types to fsdp: saves a tensor of four elements by two ranks, reads
// it again, and prints OK when the bytes are the same. With two Abseils in the program it would work only by luck.
#include <stdlib.h>

#include <array>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"

namespace {

using Values = std::array<float, 2>;

fsdp::StateDict StateOf(int rank, const std::shared_ptr<Values>& values) {
  fsdp::Buffer buffer(values->data(), sizeof(Values), [values] {});
  fsdp::ShardedTensor weight;
  weight.dtype = fsdp::DType::kFloat32;
  weight.shape = {4};
  weight.shards.push_back({{rank * 2, rank * 2 + 2}, fsdp::Tensor(buffer, weight.dtype, {2})});
  fsdp::StateDict state;
  state.type = fsdp::StateDictType::kSharded;
  state.Set(fsdp::StateKey::Model("weight"), std::move(weight));
  return state;
}

absl::Status SaveAndLoad(const std::string& root, const std::shared_ptr<fsdp::ProcessGroup>& group) {
  const auto saved = std::make_shared<Values>(Values{group->rank() + 0.5f, group->rank() + 0.25f});
  FSDP_ASSIGN_OR_RETURN(const std::string path,
                        fsdp::SaveCheckpoint(StateOf(group->rank(), saved), root, /*step=*/1, *group));
  const auto loaded = std::make_shared<Values>(Values{0, 0});
  fsdp::StateDict wanted = StateOf(group->rank(), loaded);
  FSDP_RETURN_IF_ERROR(fsdp::LoadCheckpoint(path, wanted));
  if (*loaded != *saved) return absl::DataLossError(absl::StrCat("what was read from ", path, " differs"));
  return absl::OkStatus();
}

}  // namespace

int main() {
  char root[] = "/tmp/fsdp_modules_consumer.XXXXXX";
  if (mkdtemp(root) == nullptr) return 1;
  absl::flat_hash_map<std::string, absl::Status> results;
  results["saved and loaded"] =
      fsdp::RunRanks(2, [&](std::shared_ptr<fsdp::ProcessGroup> group) { return SaveAndLoad(root, group); });
  // This program's Abseil compares an error of fsdp's.
  results["found nothing"] = absl::IsNotFound(fsdp::LatestCheckpoint(absl::StrCat(root, "/nothing")).status())
                                 ? absl::OkStatus()
                                 : absl::InternalError("found a checkpoint in a directory that does not exist");
  absl::Status status;
  for (const auto& [name, result] : results) status.Update(result);
  std::cout << (status.ok() ? "OK" : status.ToString()) << std::endl;
  return status.ok() ? 0 : 1;
}
