// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/comm_hook.h"

#include <cmath>
#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Gradients of one backward on 3 ranks, reduced by `hook`, or by default if it is empty.
absl::StatusOr<WholeTensors> Gradients(ShardingStrategy strategy, const CommHook& hook,
                                       RecordingProcessGroup::Log* log = nullptr) {
  WholeTensors gradients;
  FSDP_RETURN_IF_ERROR(RunRanks(3, [&](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto mine = std::make_shared<RecordingProcessGroup::Log>();
    const bool first = inner->rank() == 0;
    auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", mine);
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = strategy;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    if (hook) FSDP_RETURN_IF_ERROR(made.model->RegisterCommHook(hook));
    mine->clear();
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
    gradients.AddGradients(made.model->parameters());
    if (first && log != nullptr) *log = *mine;
    return absl::OkStatus();
  }));
  return gradients;
}

TEST(CommHookTest, TheDefaultHookIsTheDefaultReductionBitForBit) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    ASSERT_OK_AND_ASSIGN(const WholeTensors hooked, Gradients(strategy, DefaultCommHook()));
    ASSERT_OK_AND_ASSIGN(const WholeTensors plain, Gradients(strategy, CommHook()));
    EXPECT_TRUE(hooked == plain);
  }
}

TEST(CommHookTest, CompressingHooksSendSixteenBitsAndGiveGradientsOfFullPrecision) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      RecordingProcessGroup::Log log;
      ASSERT_OK_AND_ASSIGN(const WholeTensors low, Gradients(strategy, CompressCommHook(dtype), &log));
      ASSERT_OK_AND_ASSIGN(const WholeTensors plain, Gradients(strategy, CommHook()));
      const std::string operation = strategy == ShardingStrategy::kNoShard ? "all_reduce" : "reduce_scatter";
      EXPECT_EQ(CountEntries(log, operation + " world " + std::string(DTypeName(dtype))), 3);
      EXPECT_FALSE(low == plain);
      for (const auto& [name, values] : plain.tensors()) {
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_NEAR(low.tensors().at(name)[i], values[i], 2e-2 * std::abs(values[i]) + 1e-4) << name;
        }
      }
    }
  }
}

TEST(CommHookTest, AHookReplacesDivisionsToo) {
  const CommHook sum{.reduce = [](const Tensor& grad, const Tensor& output, ProcessGroup& group, Stream& stream) {
    group.ReduceScatter(grad, output, ReduceOp::kSum, stream);
    return absl::OkStatus();
  }};
  ASSERT_OK_AND_ASSIGN(const WholeTensors summed, Gradients(ShardingStrategy::kFullShard, sum));
  ASSERT_OK_AND_ASSIGN(const WholeTensors mean, Gradients(ShardingStrategy::kFullShard, CommHook()));
  for (const auto& [name, values] : mean.tensors()) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(summed.tensors().at(name)[i], 3 * values[i], 1e-5) << name;
  }
}

TEST(CommHookTest, IsRegisteredOnceAndNotForHybridUnits) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto failed = absl::StatusCode::kFailedPrecondition;
    FsdpOptions options = BlockOptions();
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    EXPECT_THAT(made.model->RegisterCommHook(CommHook()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected a function, got none")));
    EXPECT_OK(made.model->RegisterCommHook(DefaultCommHook()));
    EXPECT_THAT(made.model->RegisterCommHook(DefaultCommHook()),
                StatusIs(failed, HasSubstr("one is registered already")));
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.shard_group_size = 2;
    FSDP_ASSIGN_OR_RETURN(TestModel hybrid, MakeTestModel(group, options));
    EXPECT_THAT(hybrid.model->RegisterCommHook(DefaultCommHook()),
                StatusIs(failed, HasSubstr("unit root is hybrid, for which hooks are not supported")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
