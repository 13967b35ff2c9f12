// SPDX-License-Identifier: Apache-2.0
//
// FsdpModule's controls of memory and communication: input buffers of reduce-scatters, a group for them, memory that a
// unit keeps, and the reset after an error.
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

// This rank's gradients of one step after `set`, on `replicas` replicas, reduced in another dtype than computed.
absl::StatusOr<Gradients> GradientsWith(std::shared_ptr<ProcessGroup> group,
                                        const std::function<absl::Status(TestFullyShard&)>& set, int replicas = 1) {
  FullyShardOptions options{.init_seed = 3};
  options.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  return StepWith(std::move(group), options, set, replicas);
}

TEST(FsdpModuleControlsTest, TheReduceScatterDivideFactorIsTheGradientDivideFactor) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients usual, GradientsWith(group, nullptr));
    FSDP_ASSIGN_OR_RETURN(const Gradients now, GradientsWith(group, [](TestFullyShard& test) {
                            return test.root->set_gradient_divide_factor(6);
                          }));
    FSDP_ASSIGN_OR_RETURN(const Gradients before, GradientsWith(group, [](TestFullyShard& test) {
                            return test.root->set_reduce_scatter_divide_factor(6);
                          }));
    EXPECT_EQ(before, now);
    EXPECT_NE(before, usual);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleControlsTest, AnyNumberOfReduceScatterInputBuffersHasTheSameGradients) {
  for (const int replicas : {1, 2}) {
    ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Gradients one, GradientsWith(group, nullptr, replicas));
      for (const int buffers : {2, 5}) {
        const auto set = [&](TestFullyShard& test) { return test.root->set_reduce_scatter_max_input_buffers(buffers); };
        FSDP_ASSIGN_OR_RETURN(const Gradients several, GradientsWith(group, set, replicas));
        EXPECT_EQ(several, one) << buffers;
      }
      return absl::OkStatus();
    }));
  }
}

TEST(FsdpModuleControlsTest, ReduceScatterInputBuffersAreInTheMemoryPlanAlsoWhenTheirNumberIsChanged) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.blocks[0]->set_reduce_scatter_max_input_buffers(3));
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ShardedModel> model, ShardedModel::Of(*test.root));
    const MemoryPlan planned = model->runtime().plan();
    EXPECT_EQ(planned.reduce_inputs, 3) << "the largest of any unit";
    EXPECT_GT(planned.reduce_staging, 0);
    FSDP_RETURN_IF_ERROR(test.root->set_reduce_scatter_max_input_buffers(2));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    EXPECT_EQ(model->runtime().plan().reduce_inputs, 2);
    EXPECT_EQ(planned.DeviceBytes(false) - model->runtime().plan().DeviceBytes(false), planned.reduce_staging);
    EXPECT_THAT(test.root->set_reduce_scatter_max_input_buffers(0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("reduce_scatter_max_input_buffers=0: expected at least 1")));
    return absl::OkStatus();
  }));
}

// Its reduce-scatters begin once `go` is notified, or after some seconds, which `late` then says.
class WaitingGroup final : public ForwardingProcessGroup {
 public:
  WaitingGroup(std::shared_ptr<ProcessGroup> inner, absl::Notification& go, bool& late)
      : ForwardingProcessGroup(std::move(inner)), go_(go), late_(late) {}

  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override {
    stream.Run([this] {
      if (!go_.WaitForNotificationWithTimeout(absl::Seconds(5))) late_ = true;
      return absl::OkStatus();
    });
    inner().ReduceScatter(input, output, op, stream);
  }

 private:
  absl::Notification& go_;
  bool& late_;
};

// Gives its input on. Its backward notifies `reached` on the compute stream.
class Mark final : public Module {
 public:
  explicit Mark(absl::Notification& reached) : reached_(reached) {}
  std::string_view type_name() const override { return "Mark"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape&) override { return x; }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad, Tape& tape) override {
    tape.stream().Run([this] {
      reached_.Notify();
      return absl::OkStatus();
    });
    return grad;
  }

  absl::Notification& reached_;
};

// With one buffer, copies wait for the reduce-scatter before, and backward for the slot of a gradient that was not
// copied. (All-gathers would wait too: a group runs its collectives one by one.)
TEST(FsdpModuleControlsTest, WithABufferForEachUnitBackwardDoesNotWaitForReduceScatters) {
  constexpr int kUnits = 5;
  std::array<bool, kRanks> late = {};
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    absl::Notification reached;
    const auto group = std::make_shared<WaitingGroup>(inner, reached, late[inner->rank()]);
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {kRanks}, {"shard"}));
    TestSequence model;
    model.Add(std::make_unique<Mark>(reached));
    for (int i = 0; i < kUnits; ++i) {
      TestSequence* block = model.AddSequence("Block");
      block->AddLinear(4, 4);
      FSDP_RETURN_IF_ERROR(FullyShard(*block, mesh, {.reshard_after_forward = false}).status());
    }
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
    FSDP_RETURN_IF_ERROR(root->set_reduce_scatter_max_input_buffers(kUnits));
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, 4}));
    std::fill_n(x.data_as<float>(), x.numel(), 0.5f);
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
    FSDP_RETURN_IF_ERROR(model.Backward(y, tape).status());
    return tape.stream().Synchronize();
  }));
  for (const bool one : late) EXPECT_FALSE(one) << "a reduce-scatter waited for the end of the backward in vain";
}

TEST(FsdpModuleControlsTest, ReduceScattersMayHaveAGroupOfTheirOwn) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(group, {.init_seed = 3}));
    const std::string own = "reduce_scatter avg world/3", shared = "reduce_scatter avg world ";
    std::vector<Gradients> gradients;
    for (const bool before_first_use : {true, false}) {
      for (const bool enable : {true, false}) {
        FSDP_RETURN_IF_ERROR(test.root->set_separate_reduce_scatter_group(enable));
        test.log->clear();
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
        EXPECT_EQ(test.Count(own), enable ? 3 : 0) << before_first_use;
        EXPECT_EQ(test.Count(shared), enable ? 0 : 3) << before_first_use;
        EXPECT_EQ(test.Count("all_gather world "), 5) << "all-gathers keep the mesh's group";
        FSDP_ASSIGN_OR_RETURN(Gradients step, test.Gradients());
        gradients.push_back(std::move(step));
        FSDP_RETURN_IF_ERROR(test.ZeroGrad());
      }
    }
    for (const Gradients& step : gradients) EXPECT_EQ(step, gradients[0]);
    // Of one unit.
    FSDP_RETURN_IF_ERROR(test.blocks[0]->set_separate_reduce_scatter_group(true, Recurse::kNo));
    test.log->clear();
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    EXPECT_EQ(test.Count(own), 1);
    EXPECT_EQ(test.Count(shared), 2);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleControlsTest, AUnitThatKeepsItsStorageIsUnshardedIntoTheSameMemory) {
  for (const bool keep : {true, false}) {
    ASSERT_OK(RunFullyShard(kRanks, {.init_seed = 3}, [&](TestFullyShard& test) -> absl::Status {
      FSDP_RETURN_IF_ERROR(test.blocks[0]->set_keep_unsharded_storage(keep));
      const Parameter& weight = *test.blocks[0]->modules()[0]->NamedParameters()[0].second;
      std::set<const void*> addresses;
      std::vector<std::vector<float>> values;
      // Between its uses the other unit is unsharded another number of times, so that units take turns in slots.
      for (int turn = 0; turn < 4; ++turn) {
        FSDP_RETURN_IF_ERROR(test.blocks[0]->Unshard());
        FSDP_RETURN_IF_ERROR(test.root->Unshard());
        FSDP_ASSIGN_OR_RETURN(const Tape tape, test.root->NewTape());
        FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
        addresses.insert(weight.data.data());
        values.emplace_back(weight.data.data_as<float>(), weight.data.data_as<float>() + weight.data.numel());
        FSDP_RETURN_IF_ERROR(test.blocks[0]->Reshard());
        for (int other = 0; other <= turn; ++other) {
          FSDP_RETURN_IF_ERROR(test.blocks[1]->Unshard());
          FSDP_RETURN_IF_ERROR(test.blocks[1]->Reshard());
        }
        FSDP_RETURN_IF_ERROR(test.root->Reshard());
      }
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_RETURN_IF_ERROR(test.blocks[0]->Unshard());
      addresses.insert(weight.data.data());
      if (keep) {
        EXPECT_EQ(addresses.size(), 1u);
      } else {
        EXPECT_GT(addresses.size(), 1u) << "this test cannot fail";
      }
      for (const std::vector<float>& turn : values) EXPECT_EQ(turn, values[0]);
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ShardedModel> model, ShardedModel::Of(*test.root));
      EXPECT_EQ(model->runtime().plan().kept_unsharded > 0, keep);
      return test.blocks[0]->Reshard();
    }));
  }
}

}  // namespace
}  // namespace fsdp
