// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/sharded_grad_scaler.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
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
    EXPECT_EQ(p.gradient(), 8) << "unscaled only in the optimizer's pass";
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
  for (const bool overflows : {false, true}) {
    ASSERT_OK(OnTwoRanks([=](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
      ShardedGradScaler scaler(group, {.init_scale = 16});
      if (overflows) p.SetGradient(std::numeric_limits<float>::infinity());
      p.parameter.has_grad = group.rank() == 0;
      FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
      EXPECT_EQ(stepped, !overflows);
      FSDP_RETURN_IF_ERROR(scaler.Update());
      EXPECT_EQ(scaler.scale(), overflows ? 8 : 16);
      return absl::OkStatus();
    }));
  }
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

// A device that counts the scaler's kernel calls, each of which must run on a stream of the device, as TensorOps
// requires.
class CountingDevice final : public Device, private TensorOps {
 public:
  DeviceType type() const override { return host_->type(); }
  std::string name() const override { return "counting"; }
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return host_->Allocate(nbytes); }
  absl::StatusOr<Buffer> AllocatePinned(int64_t nbytes) override { return host_->AllocatePinned(nbytes); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(std::string name) override {
    return host_->CreateStream(std::move(name));
  }
  const TensorOps& ops() const override { return *this; }
  int64_t allocated_bytes() const override { return host_->allocated_bytes(); }
  int64_t peak_allocated_bytes() const override { return host_->peak_allocated_bytes(); }
  void ResetPeak() override { host_->ResetPeak(); }
  void RecordAllocation(int64_t nbytes) override { host_->RecordAllocation(nbytes); }

  int scaled() const { return scaled_; }
  int checked() const { return checked_; }

 private:
  const TensorOps& inner() const { return host_->ops(); }
  void Zero(const Tensor& t, Stream& stream) const override { inner().Zero(t, stream); }
  void CastDivide(const Tensor& source, const Tensor& destination, double divisor, Stream& stream) const override {
    inner().CastDivide(source, destination, divisor, stream);
  }
  void CastDivideIntervals(const Tensor& source, const Tensor& destination, std::vector<IntervalCopy> intervals,
                           double divisor, Stream& stream) const override {
    inner().CastDivideIntervals(source, destination, std::move(intervals), divisor, stream);
  }
  void Accumulate(const Tensor& source, const Tensor& destination, Stream& stream) const override {
    inner().Accumulate(source, destination, stream);
  }
  void ScaleBy(std::vector<Tensor> tensors, const Tensor& factor, Stream& stream) const override {
    EXPECT_EQ(&stream.device(), host_.get()) << "a stream of another device";
    ++scaled_;
    inner().ScaleBy(std::move(tensors), factor, stream);
  }
  void AccumulateSquaredNorm(std::vector<Tensor> sources, const Tensor& result, Stream& stream) const override {
    inner().AccumulateSquaredNorm(std::move(sources), result, stream);
  }
  void CheckFinite(std::vector<Tensor> tensors, const Tensor& found_inf, Stream& stream) const override {
    EXPECT_EQ(&stream.device(), host_.get()) << "a stream of another device";
    ++checked_;
    inner().CheckFinite(std::move(tensors), found_inf, stream);
  }
  void CopyTensors(std::vector<TensorCopy> copies, Stream& stream) const override {
    inner().CopyTensors(std::move(copies), stream);
  }
  void ClipCoefficient(const Tensor& squared_norms, float max_norm, const Tensor& result,
                       Stream& stream) const override {
    inner().ClipCoefficient(squared_norms, max_norm, result, stream);
  }

  const std::shared_ptr<Device> host_ = CreateHostDevice();
  mutable int scaled_ = 0, checked_ = 0;
};

// As for an offloaded unit: the group's device cannot reach pageable host memory with its kernels.
TEST(OffloadedGradientsTest, AreScaledAndCheckedByTheKernelsOfTheDeviceThatTheyLieOn) {
  ASSERT_OK(OnTwoRanks([](ProcessGroup& group, OneParameter& here, Sgd&, Stream& stream) -> absl::Status {
    CountingDevice elsewhere;
    OneParameter there(elsewhere, 8);
    Sgd optimizer(std::vector<ShardedParameter*>{&there.parameter, &here.parameter}, SgdOptions{.lr = 1});
    ShardedGradScaler scaler(group, {.init_scale = 16});
    FSDP_RETURN_IF_ERROR(scaler.Unscale(optimizer, stream));
    EXPECT_EQ(elsewhere.scaled(), 1);
    EXPECT_EQ(elsewhere.checked(), 1);
    EXPECT_EQ(there.gradient(), 0.5f);
    EXPECT_EQ(here.gradient(), 0.5f);
    FSDP_RETURN_IF_ERROR(scaler.Update());
    // An overflow there, on one rank, counts on all ranks.
    there.SetGradient(group.rank() == 1 ? HUGE_VALF : 8);
    here.SetGradient(8);
    FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
    EXPECT_FALSE(stepped);
    EXPECT_EQ(elsewhere.checked(), 2);
    return scaler.Update();
  }));
}

TEST(GradScalerOptionsTest, ValuesOutOfRangeAreRefusedBeforeAnythingIsScaled) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<GradScalerOptions, std::string>> cases = {
      {{.init_scale = 0}, "init_scale is 0: expected a finite number above 0"},
      {{.init_scale = -2}, "init_scale is -2: expected a finite number above 0"},
      {{.init_scale = kNan}, "init_scale is nan: expected a finite number above 0"},
      {{.growth_factor = 1}, "growth_factor is 1: expected a finite number above 1"},
      {{.growth_factor = kNan}, "growth_factor is nan: expected a finite number above 1"},
      {{.backoff_factor = 1}, "backoff_factor is 1: expected a number above 0 and below 1"},
      {{.backoff_factor = 0}, "backoff_factor is 0: expected a number above 0 and below 1"},
      {{.growth_interval = 0}, "growth_interval is 0: expected at least 1"},
  };
  ASSERT_OK(OnTwoRanks([&](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
    for (const auto& [options, message] : cases) {
      const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("grad scaler: " + message));
      ShardedGradScaler scaler(group, options);
      EXPECT_THAT(scaler.Unscale(optimizer, stream), refused);
      EXPECT_THAT(scaler.Step(optimizer, stream).status(), refused);
      EXPECT_THAT(scaler.Update(4), refused);
      EXPECT_EQ(p.gradient(), 8);
      EXPECT_EQ(p.value(), 1);
    }
    ShardedGradScaler scaler(group);
    EXPECT_THAT(scaler.Update(-1.0), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("new_scale is -1: expected a finite number above 0")));
    return absl::OkStatus();
  }));
}

// The scale after each of `steps` steps from `first` on, of which every fifth overflows on rank 0.
absl::StatusOr<std::vector<float>> Scales(ShardedGradScaler& scaler, int first, int last, OneParameter& p,
                                          Optimizer& optimizer, Stream& stream, int rank) {
  std::vector<float> scales;
  for (int step = first; step < last; ++step) {
    p.SetGradient(step % 5 == 4 && rank == 0 ? HUGE_VALF : 1);
    FSDP_RETURN_IF_ERROR(scaler.Step(optimizer, stream).status());
    FSDP_RETURN_IF_ERROR(scaler.Update());
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(GradScalerStateTest, ARunThatIsResumedGoesOnAsIfItHadNotStopped) {
  ASSERT_OK(OnTwoRanks([&](ProcessGroup& group, OneParameter& p, Sgd& optimizer, Stream& stream) -> absl::Status {
    const GradScalerOptions options{
        .init_scale = 1024, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 3};
    constexpr int kStop = 6, kSteps = 20;  // stopped one step after an overflow, two before the scale grows
    ShardedGradScaler through(group, options);
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> wanted,
                          Scales(through, 0, kSteps, p, optimizer, stream, group.rank()));
    ShardedGradScaler stopped(group, options);
    FSDP_ASSIGN_OR_RETURN(std::vector<float> got, Scales(stopped, 0, kStop, p, optimizer, stream, group.rank()));
    StateDict state;
    stopped.AddStateDict(state);

    ShardedGradScaler resumed(group);  // other options, which the state replaces
    FSDP_RETURN_IF_ERROR(resumed.LoadStateDict(state));
    EXPECT_EQ(resumed.scale(), stopped.scale());
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> rest,
                          Scales(resumed, kStop, kSteps, p, optimizer, stream, group.rank()));
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(GradScalerStateTest, HasTheEntriesOfPyTorchs) {
  ASSERT_OK(OnTwoRanks([](ProcessGroup& group, OneParameter&, Sgd& optimizer, Stream& stream) -> absl::Status {
    ShardedGradScaler scaler(group, {.init_scale = 8});
    FSDP_RETURN_IF_ERROR(scaler.Step(optimizer, stream).status());
    FSDP_RETURN_IF_ERROR(scaler.Update());
    StateDict state;
    scaler.AddStateDict(state);
    EXPECT_EQ(*state.FindText(StateKey::Extra("grad_scaler")),
              "{\"scale\":8.0,\"growth_factor\":2.0,\"backoff_factor\":0.5,\"growth_interval\":2000,"
              "\"_growth_tracker\":1}");
    return absl::OkStatus();
  }));
}

TEST(GradScalerStateTest, AStateThatIsNoneIsRefusedAndChangesNothing) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "extra/grad_scaler is \"[]\": expected a JSON object"},
      {"{\"scale\": 4}", "expected a number \"growth_factor\""},
      {R"({"scale":0,"growth_factor":2,"backoff_factor":0.5,"growth_interval":9,"_growth_tracker":1})",
       "grad_scaler: scale is 0: expected a finite number above 0"},
      {R"({"scale":4,"growth_factor":1,"backoff_factor":0.5,"growth_interval":9,"_growth_tracker":1})",
       "growth_factor is 1"},
      {R"({"scale":4,"growth_factor":2,"backoff_factor":0.5,"growth_interval":9,"_growth_tracker":9})",
       "_growth_tracker is 9 of growth_interval 9: expected at least 0 and below it"},
  };
  ASSERT_OK(OnTwoRanks([&](ProcessGroup& group, OneParameter&, Sgd&, Stream&) -> absl::Status {
    ShardedGradScaler scaler(group);
    EXPECT_THAT(scaler.LoadStateDict(StateDict()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no text extra/grad_scaler")));
    for (const auto& [text, message] : cases) {
      StateDict state;
      state.Set(StateKey::Extra("grad_scaler"), text);
      EXPECT_THAT(scaler.LoadStateDict(state), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
      EXPECT_EQ(scaler.scale(), 65536);
    }
    ShardedGradScaler disabled(group, {.enabled = false});
    StateDict nothing;
    disabled.AddStateDict(nothing);
    EXPECT_TRUE(nothing.empty());
    return disabled.LoadStateDict(nothing);
  }));
}

}  // namespace
}  // namespace fsdp
