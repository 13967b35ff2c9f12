// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/sharded_grad_scaler.h"

#include <limits>
#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// One parameter of two elements on each rank, with this gradient.
struct OneParameter {
  OneParameter(Device& device, float gradient) {
    parameter.fqn = "weight";
    parameter.shape = Shape{2};
    parameter.interval = {0, 2};
    parameter.data = *Tensor::Empty(device, DType::kFloat32, {2});
    parameter.grad = *Tensor::Empty(device, DType::kFloat32, {2});
    parameter.device = &device;
    parameter.data.data_as<float>()[0] = parameter.data.data_as<float>()[1] = 1;
    SetGradient(gradient);
  }
  void SetGradient(float gradient) {
    parameter.grad.data_as<float>()[0] = parameter.grad.data_as<float>()[1] = gradient;
    parameter.has_grad = true;
  }
  float value() const { return parameter.data.data_as<float>()[1]; }
  float gradient() const { return parameter.grad.data_as<float>()[1]; }

  ShardedParameter parameter;
};

using Body = std::function<absl::Status(ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream)>;

absl::Status OnTwoRanks(const Body& body) {
  return RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    OneParameter p(*group->device(), 8);
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    Sgd optimizer(std::vector<ShardedParameter*>{&p.parameter}, SgdOptions{.lr = 1});
    return body(*group, p, optimizer, *stream);
  });
}

TEST(ShardedGradScalerTest, UnscalesStepsAndGrows) {
  ASSERT_OK(OnTwoRanks([](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
    ShardedGradScaler scaler(group, {.init_scale = 16, .growth_interval = 2});
    EXPECT_EQ(scaler.scale(), 16);
    FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_TRUE(stepped);
    EXPECT_EQ(p.gradient(), 8) << "unscaled in the optimizer's pass alone";
    EXPECT_EQ(p.value(), 0.5f);
    FSDP_RETURN_IF_ERROR(scaler.Update());
    EXPECT_EQ(scaler.scale(), 16);
    p.SetGradient(1);
    FSDP_RETURN_IF_ERROR(scaler.Step(optimizer, stream).status());
    FSDP_RETURN_IF_ERROR(scaler.Update());
    EXPECT_EQ(scaler.scale(), 32);
    return scaler.Update(/*new_scale=*/4).ok() && scaler.scale() == 4 ? absl::OkStatus() : absl::InternalError("scale");
  }));
}

TEST(ShardedGradScalerTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    ASSERT_OK(OnTwoRanks([bad](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
      ShardedGradScaler scaler(group, {.init_scale = 16});
      if (group.rank() == 1) p.SetGradient(bad);
      FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
      EXPECT_FALSE(stepped);
      EXPECT_EQ(p.value(), 1);
      FSDP_RETURN_IF_ERROR(scaler.Update());
      EXPECT_EQ(scaler.scale(), 8);
      return absl::OkStatus();
    }));
  }
}

TEST(ShardedGradScalerTest, ARankWithoutGradientsStillTakesPart) {
  ASSERT_OK(OnTwoRanks([](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
    ShardedGradScaler scaler(group);
    p.parameter.has_grad = group.rank() == 0;
    FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
    EXPECT_TRUE(stepped);
    return scaler.Update();
  }));
}

TEST(ShardedGradScalerTest, CallsOutOfOrderAreErrors) {
  ASSERT_OK(OnTwoRanks([](ProcessGroup& group, OneParameter&, Sgd& optimizer, Stream& stream) -> absl::Status {
    const auto failed = absl::StatusCode::kFailedPrecondition;
    ShardedGradScaler scaler(group);
    EXPECT_THAT(scaler.Update(), StatusIs(failed, HasSubstr("nothing unscaled")));
    FSDP_RETURN_IF_ERROR(scaler.Unscale(optimizer, stream));
    EXPECT_THAT(scaler.Unscale(optimizer, stream), StatusIs(failed, HasSubstr("since the last Update")));
    FSDP_RETURN_IF_ERROR(scaler.Step(optimizer, stream).status());
    EXPECT_THAT(scaler.Unscale(optimizer, stream), StatusIs(failed, HasSubstr("Unscale after Step")));
    EXPECT_THAT(scaler.Step(optimizer, stream).status(), StatusIs(failed, HasSubstr("Step has been called")));
    return scaler.Update();
  }));
}

TEST(ShardedGradScalerTest, DisabledItOnlySteps) {
  ASSERT_OK(OnTwoRanks([](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
    ShardedGradScaler scaler(group, {.enabled = false});
    EXPECT_EQ(scaler.scale(), 1);
    FSDP_RETURN_IF_ERROR(scaler.Unscale(optimizer, stream));
    FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    EXPECT_TRUE(stepped);
    EXPECT_EQ(p.value(), 1 - 8);
    return scaler.Update();
  }));
}

}  // namespace
}  // namespace fsdp
