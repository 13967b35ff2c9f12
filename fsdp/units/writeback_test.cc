// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/writeback.h"

#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(WritebackTest, DataReplacedByMemoryOfItsOwnIsCopiedIntoTheShardAndBecomesAView) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    for (ShardedParameter* parameter : made.model->parameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor mine,
                            Tensor::Empty(made.model->device(), DType::kFloat32, parameter->data.shape()));
      for (int64_t i = 0; i < mine.numel(); ++i) mine.data_as<float>()[i] = 0.25f;
      parameter->data = mine;
    }
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
    for (ShardedParameter* parameter : made.model->parameters()) {
      for (int64_t i = 0; i < parameter->data.numel(); ++i) parameter->data.data_as<float>()[i] += 0.5f;  // the view
    }
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    for (const auto& [key, value] : state.entries()) {
      const Tensor& whole = std::get<ShardedTensor>(value).shards.at(0).data;
      for (int64_t i = 0; i < whole.numel(); ++i) EXPECT_EQ(whole.data_as<float>()[i], 0.75f) << key.fqn;
    }
    return absl::OkStatus();
  }));
}

TEST(WritebackTest, AStateDictSeesReplacedDataToo) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    ShardedParameter& first = *made.model->parameters()[0];
    FSDP_ASSIGN_OR_RETURN(const Tensor mine, Tensor::Empty(made.model->device(), DType::kFloat32, first.data.shape()));
    for (int64_t i = 0; i < mine.numel(); ++i) mine.data_as<float>()[i] = 0.25f;
    first.data = mine;
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    const Tensor& whole = state.FindTensor(StateKey::Model(first.fqn))->shards.at(0).data;
    for (int64_t i = 0; i < whole.numel(); ++i) EXPECT_EQ(whole.data_as<float>()[i], 0.25f);
    return absl::OkStatus();
  }));
}

TEST(WritebackTest, AnotherSizeIsRefusedByName) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(made.model->parameters()[0]->data, Tensor::Empty(made.model->device(), DType::kFloat32, {3}));
    return made.ComputeGradients(0).status();
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot write back parameter \"transformer.wte.weight\": its data was replaced "
                                 "by [3] float32")));
}

}  // namespace
}  // namespace fsdp
