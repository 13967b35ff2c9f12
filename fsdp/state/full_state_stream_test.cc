// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/full_state_stream.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/models/gpt2.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class FullStateStreamTest : public testing::TestWithParam<int> {};

TEST_P(FullStateStreamTest, VisitsOnRank0WhatAFullStateDictHas) {
  FsdpOptions original = BlockOptions();
  original.use_orig_params = true;
  FsdpOptions replicated = BlockOptions();
  replicated.sharding_strategy = ShardingStrategy::kNoShard;
  for (const FsdpOptions& options : {BlockOptions(), original, replicated}) {
    StateCollector full, streamed;
    ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      FSDP_ASSIGN_OR_RETURN(const StateDict whole, made.AllState());
      if (group->rank() == 0) full.Add(whole);
      return made.model->StreamFullState(made.optimizer.get(), [&](const StateDict& part) {
        EXPECT_EQ(group->rank(), 0);
        streamed.Add(part);
        return absl::OkStatus();
      });
    }));
    streamed.ExpectCovered();
    ExpectSame(full, streamed);
  }
}

TEST_P(FullStateStreamTest, DescribesNamesShapesAndTextsOfWhatItVisits) {
  ASSERT_OK(RunRanks(GetParam(), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict described, made.model->DescribeFullState(made.optimizer.get()));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, made.AllState());
    EXPECT_EQ(described.entries().size(), whole.entries().size());
    EXPECT_EQ(described.aliases, whole.aliases);
    EXPECT_EQ(described.units.size(), whole.units.size());
    for (const auto& [key, value] : whole.entries()) {
      if (const auto* text = std::get_if<std::string>(&value)) {
        EXPECT_EQ(*described.FindText(key), *text);
        continue;
      }
      const ShardedTensor* named = described.FindTensor(key);
      if (named == nullptr) return absl::NotFoundError(key.ToString());
      EXPECT_EQ(named->shape, std::get<ShardedTensor>(value).shape);
      EXPECT_EQ(named->dtype, std::get<ShardedTensor>(value).dtype);
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, FullStateStreamTest, testing::Values(1, 2, 3));

// The memory that a rank holds beyond the model and its optimizer while the state of `layers` blocks passes, and the
// largest unit.
absl::Status MeasureExtra(const std::shared_ptr<ProcessGroup>& group, int layers, int64_t* extra, int64_t* unit_bytes) {
  Gpt2Config config = OddGpt2Config();
  config.n_layer = layers;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(config));
  TestModel made;
  FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(module), group, BlockOptions()));
  made.optimizer = std::make_unique<AdamW>(made.model->parameters(), AdamWOptions{});
  FSDP_RETURN_IF_ERROR(made.Train(0));
  for (const FlatUnitLayout& unit : made.model->UnitLayouts()) {
    *unit_bytes = std::max<int64_t>(*unit_bytes, unit.unsharded_numel * int64_t{sizeof(float)});
  }
  Device& device = made.model->device();
  const int64_t before = device.allocated_bytes();
  device.ResetPeak();
  std::set<std::string> seen;
  FSDP_RETURN_IF_ERROR(made.model->StreamFullState(made.optimizer.get(), [&](const StateDict& part) {
    for (const auto& [key, value] : part.entries()) seen.insert(key.ToString());
    return absl::OkStatus();
  }));
  *extra = device.peak_allocated_bytes() - before;
  EXPECT_EQ(seen.size(), group->rank() == 0 ? 4u * made.model->parameters().size() : 0u);
  return absl::OkStatus();
}

TEST(FullStateStreamMemoryTest, ExtraMemoryIsAtMostTwoUnitsWhateverTheModelsSize) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    int64_t of_two = 0, of_nine = 0, unit_bytes = 0;
    FSDP_RETURN_IF_ERROR(MeasureExtra(group, 2, &of_two, &unit_bytes));
    FSDP_RETURN_IF_ERROR(MeasureExtra(group, 9, &of_nine, &unit_bytes));
    EXPECT_GT(of_two, 0);
    EXPECT_LE(of_two, 2 * unit_bytes);
    EXPECT_EQ(of_nine, of_two);
    return absl::OkStatus();
  }));
}

TEST(FullStateStreamErrorTest, AVisitorsErrorIsEveryRanksAndEndsTheVisits) {
  int visits = 0;
  const absl::Status status = RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    const absl::Status streamed = made.model->StreamFullState(nullptr, [&](const StateDict&) {
      ++visits;
      return absl::ResourceExhaustedError("disk full");
    });
    // The group lives on.
    FSDP_RETURN_IF_ERROR(AllReduceStatus(*group, absl::OkStatus()));
    return streamed;
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("disk full")));
  EXPECT_EQ(visits, 1);
}

}  // namespace
}  // namespace fsdp
