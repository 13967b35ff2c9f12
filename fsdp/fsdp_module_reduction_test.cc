// SPDX-License-Identifier: Apache-2.0
//
// How the settings of FsdpModule change gradients: accumulation, divisors, comms and hooks; on 3 ranks, which divide no
// size here.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;

Gradients Times(Gradients gradients, float factor) {
  for (auto& [name, values] : gradients) {
    for (float& value : values) value *= factor;
  }
  return gradients;
}

TEST(FsdpModuleReductionTest, BackwardsWithoutSyncAccumulateIntoTheNextWithIt) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients once, test.Gradients());
    FSDP_RETURN_IF_ERROR(test.ZeroGrad());
    FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(false));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients none, test.Gradients());
    EXPECT_THAT(none, IsEmpty());
    FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(true));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients twice, test.Gradients());
    EXPECT_EQ(twice, Times(once, 2));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleReductionTest, SyncedBackwardsAddUp) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.root->set_is_last_backward(false));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_RETURN_IF_ERROR(test.root->set_is_last_backward(true));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients twice, test.Gradients());
    FSDP_RETURN_IF_ERROR(test.ZeroGrad());
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients once, test.Gradients());
    EXPECT_EQ(twice, Times(once, 2));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleReductionTest, ReduceScattersWithoutAllReduceAccumulateUntilOneWithIt) {
  ASSERT_OK(RunFullyShard(
      4, {},
      [](TestFullyShard& test) -> absl::Status {
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
        FSDP_ASSIGN_OR_RETURN(const Gradients once, test.Gradients());
        FSDP_RETURN_IF_ERROR(test.ZeroGrad());
        FSDP_RETURN_IF_ERROR(test.root->set_requires_all_reduce(false));
        for (int i = 0; i < 3; ++i) FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
        FSDP_ASSIGN_OR_RETURN(const Gradients none, test.Gradients());
        EXPECT_THAT(none, IsEmpty());
        FSDP_RETURN_IF_ERROR(test.root->set_requires_all_reduce(true));
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
        FSDP_ASSIGN_OR_RETURN(const Gradients four, test.Gradients());
        EXPECT_EQ(four, Times(once, 4));
        return absl::OkStatus();
      },
      /*replicas=*/2));
}

TEST(FsdpModuleReductionTest, TheDivideFactorIsOfOneUnitAndNotOfThoseBelow) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients mean, StepWith(group, {}, nullptr));
    FSDP_ASSIGN_OR_RETURN(const Gradients sum, StepWith(group, {}, [](TestFullyShard& test) {  //
                            return test.root->set_gradient_divide_factor(1);
                          }));
    for (const auto& [name, values] : mean) {
      const bool of_root = name == "2.weight" || name == "2.bias";
      EXPECT_EQ(sum.at(name), of_root ? Times(mean, 4).at(name) : values) << name;
    }
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleReductionTest, ADivideFactorIsAboveZero) {
  ASSERT_OK(RunFullyShard(1, {}, [](TestFullyShard& test) -> absl::Status {
    EXPECT_THAT(test.root->set_gradient_divide_factor(0),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gradient_divide_factor=0")));
    return absl::OkStatus();
  }));
}

// The start of one buffer of the group's memory for every call, which `pool` keeps.
absl::StatusOr<Tensor> Take(int64_t numel, DType dtype, ProcessGroup& group, Buffer& pool) {
  constexpr int64_t kPoolBytes = 1 << 16;
  if (!pool) {
    FSDP_ASSIGN_OR_RETURN(pool, group.Allocate(kPoolBytes));
  }
  return Tensor(pool.Slice(0, numel * SizeOf(dtype)), dtype, {numel});
}

// Count calls, and forward them to the group.
struct ForwardingAllGather final : AllGatherComm {
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    dtypes.push_back(dtype);
    return Take(numel, dtype, group, pool);
  }
  void AllGather(const Tensor& input, const Tensor& output, ProcessGroup& group, Stream& stream) override {
    ++runs;
    // The input is this rank's slot of the output.
    EXPECT_EQ(input.data(), output.Slice({group.rank() * input.numel(), (group.rank() + 1) * input.numel()}).data());
    group.AllGather(input, output, stream);
  }
  std::vector<DType> dtypes;  // of each allocation
  Buffer pool;
  int runs = 0;
};

struct ForwardingReduceScatter final : ReduceScatterComm {
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    dtypes.push_back(dtype);
    return Take(numel, dtype, group, pool);
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, ProcessGroup& group,
                     Stream& stream) override {
    ops.push_back(op);
    group.ReduceScatter(input, output, op, stream);
  }
  std::vector<DType> dtypes;
  Buffer pool;
  std::vector<ReduceOp> ops;
};

TEST(FsdpModuleReductionTest, CustomCommsAllocateAndRunInPlaceOfTheGroups) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, StepWith(group, {}, nullptr));
    auto all_gather = std::make_shared<ForwardingAllGather>();
    auto reduce_scatter = std::make_shared<ForwardingReduceScatter>();
    FSDP_ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, [&](TestFullyShard& test) -> absl::Status {
                            FSDP_RETURN_IF_ERROR(test.root->set_custom_all_gather(all_gather));
                            return test.root->set_custom_reduce_scatter(reduce_scatter);
                          }));
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(all_gather->runs, 5);  // three units forward, two backward: the setting is recursive
    EXPECT_EQ(all_gather->dtypes, std::vector<DType>(5, DType::kFloat32));
    EXPECT_THAT(reduce_scatter->ops, ElementsAre(ReduceOp::kAvg));  // only the root's
    EXPECT_THAT(reduce_scatter->dtypes, ElementsAre(DType::kFloat32));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleReductionTest, CustomCommsAllocateForEachCollectiveInItsDtypeAndMayGiveTheSameMemory) {
  for (const int replicas : {1, 2}) {
    ASSERT_OK(RunRanks(4, [replicas](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      const FullyShardOptions options{.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}};
      FSDP_ASSIGN_OR_RETURN(const Gradients wanted, StepWith(group, options, nullptr, replicas));
      auto all_gather = std::make_shared<ForwardingAllGather>();
      auto reduce_scatter = std::make_shared<ForwardingReduceScatter>();
      const auto set = [&](TestFullyShard& test) -> absl::Status {
        FSDP_RETURN_IF_ERROR(test.root->set_custom_all_gather(all_gather));
        for (FsdpModule* block : test.blocks) FSDP_RETURN_IF_ERROR(block->set_custom_reduce_scatter(reduce_scatter));
        return test.root->set_custom_reduce_scatter(reduce_scatter);
      };
      FSDP_ASSIGN_OR_RETURN(const Gradients got, StepWith(group, options, set, replicas));
      EXPECT_EQ(got, wanted);
      EXPECT_EQ(all_gather->dtypes, std::vector<DType>(5, DType::kBFloat16));
      EXPECT_EQ(reduce_scatter->dtypes, std::vector<DType>(3, DType::kFloat32));
      return absl::OkStatus();
    }));
  }
}

// Return memory for one element too few, and undefined memory.
struct ShortAllGather final : AllGatherComm {
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    return Tensor::Empty(*group.device(), dtype, {numel - 1});
  }
  void AllGather(const Tensor&, const Tensor&, ProcessGroup&, Stream&) override {}
};

struct EmptyReduceScatter final : ReduceScatterComm {
  absl::StatusOr<Tensor> Allocate(int64_t, DType, ProcessGroup&) override { return Tensor(); }
  void ReduceScatter(const Tensor&, const Tensor&, ReduceOp, ProcessGroup&, Stream&) override {}
};

TEST(FsdpModuleReductionTest, MemoryThatDoesNotFitTheCollectiveIsRefusedByUnit) {
  const auto step_with = [](const std::function<absl::Status(TestFullyShard&)>& set) {
    return RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) { return StepWith(group, {}, set).status(); });
  };
  // Two ranks' rows of the root: weight [4, 7] and bias [7], padded to 8.
  EXPECT_THAT(step_with([](TestFullyShard& test) {
                return test.root->set_custom_all_gather(std::make_shared<ShortAllGather>(), Recurse::kNo);
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("AllGatherComm of unit root allocated [35] in float32 on cpu: expected [36] in "
                                 "float32 on cpu")));
  EXPECT_THAT(step_with([](TestFullyShard& test) {
                return test.blocks[0]->set_custom_reduce_scatter(std::make_shared<EmptyReduceScatter>());
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ReduceScatterComm of unit 0 allocated an undefined tensor: expected [")));
}

TEST(FsdpModuleReductionTest, ForcedSumsReachTheCollectivesAndDivideAfterwards) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, StepWith(group, {}, nullptr));
    auto reduce_scatter = std::make_shared<ForwardingReduceScatter>();
    FSDP_ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, [&](TestFullyShard& test) -> absl::Status {
                            FSDP_RETURN_IF_ERROR(test.root->set_force_sum_reduction_for_comms(true));
                            return test.root->set_custom_reduce_scatter(reduce_scatter);
                          }));
    EXPECT_EQ(got, wanted);  // 4 divides exactly
    EXPECT_THAT(reduce_scatter->ops, ElementsAre(ReduceOp::kSum));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleReductionTest, TheAllReduceHookSeesTheReducedGradientBeforeTheLastDivision) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TensorOps& ops = group->device()->ops();
    for (const int replicas : {1, 2}) {
      std::vector<int64_t> seen;
      const auto zero = [&](const Tensor& gradient, Stream& stream) {
        seen.push_back(gradient.numel());
        ops.Zero(gradient, stream);
        return absl::OkStatus();
      };
      const auto set = [&](TestFullyShard& test) { return test.root->set_all_reduce_hook(zero); };
      FSDP_ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, set, replicas));
      // One rank's rows of the root: weight [4, 7] and bias [7].
      EXPECT_THAT(seen, ElementsAre(replicas == 1 ? 1 * 7 + 2 : 2 * 7 + 4));
      EXPECT_EQ(got.at("2.bias"), std::vector<float>(got.at("2.bias").size(), 0));
      EXPECT_NE(got.at("1.0.bias"), std::vector<float>(got.at("1.0.bias").size(), 0));
    }
    return absl::OkStatus();
  }));
}

// The reduction, the hook's work and the division are in order although the hook's work is on another stream.
TEST(FsdpModuleReductionTest, TheAllReduceHookMayHaveAStreamOfItsOwn) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients plain, StepWith(group, {}, nullptr));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> own, group->device()->CreateStream("hook"));
    const Stream* seen = nullptr;
    const auto twice = [&](const Tensor& gradient, Stream& stream) {
      seen = &stream;
      group->device()->ops().Accumulate(gradient, gradient, stream);
      return absl::OkStatus();
    };
    FSDP_ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, [&](TestFullyShard& test) {
                            return test.root->set_all_reduce_hook(twice, own.get());
                          }));
    EXPECT_EQ(seen, own.get());
    EXPECT_EQ(got.at("2.bias"), Times(plain, 2).at("2.bias"));
    EXPECT_EQ(got.at("1.0.bias"), plain.at("1.0.bias"));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleReductionTest, AStreamForTheHookIsOfTheMeshsDeviceAndNotForTwoDimensions) {
  const AllReduceHook hook = [](const Tensor&, Stream&) { return absl::OkStatus(); };
  const auto check = [&](int replicas, bool of_other_device, const std::string& message) {
    ASSERT_OK(RunFullyShard(
        2, {},
        [&](TestFullyShard& test) -> absl::Status {
          const std::shared_ptr<Device> other = CreateHostDevice();
          Device& device = of_other_device ? *other : test.device();
          FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("hook"));
          EXPECT_THAT(test.root->set_all_reduce_hook(hook, stream.get()),
                      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
          return test.root->set_all_reduce_hook(hook);
        },
        replicas));
  };
  check(1, /*of_other_device=*/true, "stream \"hook\" is another device's (cpu): expected one of the mesh's device");
  check(2, /*of_other_device=*/false, "stream \"hook\" on mesh replicate=2 x shard=1: expected none on a mesh of two");
}

}  // namespace
}  // namespace fsdp
