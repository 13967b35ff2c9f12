// SPDX-License-Identifier: Apache-2.0
//
// The order in which FullyShard issues its work, against what PyTorch 2.15's fully_shard issued on the same wrapping of
// a GPT-2 of three blocks (testdata/fully_shard_schedules.json).
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/models/gpt2.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

ReshardAfterForward ReshardOf(const json& flags) {
  if (!flags.contains("reshard_after_forward")) return {};
  const json& value = flags["reshard_after_forward"];
  if (value.is_boolean()) return value.get<bool>();
  return value.get<int>();
}

// Rank 0's step after the first.
absl::StatusOr<std::string> ScheduleOf(const json& flags) {
  std::string rendered;
  FSDP_RETURN_IF_ERROR(RunRanks(flags["nproc"], [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    Gpt2Config config = OddGpt2Config();
    config.n_layer = 3;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, MakeGpt2(config));
    const FullyShardOptions options{.reshard_after_forward = ReshardOf(flags)};
    for (const auto& [name, module] : model->NamedModules()) {
      if (dynamic_cast<Gpt2Block*>(module) != nullptr)
        FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
    }
    FSDP_ASSIGN_OR_RETURN(FsdpModule * outermost, FullyShard(*model, mesh, options));
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardedModel::Of(*outermost));
    const Schedule schedule = sharded->StepSchedule(flags.value("grad_accum", 1));
    if (group->rank() == 0) rendered = RenderSchedule(schedule, sharded->UnitNames());
    return absl::OkStatus();
  }));
  return rendered;
}

TEST(FullyShardScheduleTest, MatchesPyTorchsOrderOfIssue) {
  std::ifstream file("fsdp/testdata/fully_shard_schedules.json");
  ASSERT_TRUE(file.is_open());
  int compared = 0;
  for (const json& record : json::parse(file)) {
    SCOPED_TRACE(record["flags"].dump());
    std::string wanted;
    for (const json& event : record["steady"]) wanted += event.get<std::string>() + "\n";
    ASSERT_OK_AND_ASSIGN(const std::string ours, ScheduleOf(record["flags"]));
    EXPECT_EQ(ours, wanted);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

}  // namespace
}  // namespace fsdp
