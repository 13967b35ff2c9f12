// SPDX-License-Identifier: Apache-2.0
//
// Models whose collectives' memory is a symmetric window, on the emulated GPU with a fake NCCL, which hangs if ranks
// use different places of a window (collectives/cuda/fake_nccl.h).
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/fake_nccl.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 2;

absl::StatusOr<std::unique_ptr<Module>> SmallGpt2(int blocks = 2) {
  Gpt2Config config = OddGpt2Config();
  config.n_layer = blocks;
  return MakeGpt2(config);
}

// A rank's model under FullyShard, block by block.
struct Sharded {
  std::unique_ptr<FullyShardedDataParallel> model;
  std::vector<FsdpModule*> blocks;
  FsdpModule* root = nullptr;

  absl::Status OnAll(const std::function<absl::Status(FsdpModule&)>& set) const {
    for (FsdpModule* block : blocks) FSDP_RETURN_IF_ERROR(set(*block));
    return set(*root);
  }
};

absl::StatusOr<Sharded> MakeSharded(const std::shared_ptr<ProcessGroup>& group) {
  Sharded made;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, SmallGpt2());
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<const DeviceMesh> mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  for (const auto& [name, below] : module->NamedModules()) {
    if (dynamic_cast<Gpt2Block*>(below) == nullptr) continue;
    FSDP_ASSIGN_OR_RETURN(FsdpModule * block, FullyShard(*below, mesh, {.init_seed = 11}));
    made.blocks.push_back(block);
  }
  FSDP_ASSIGN_OR_RETURN(made.root, FullyShard(*module, mesh, {.init_seed = 11}));
  FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::FromFullyShard(std::move(module)));
  return made;
}

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> Wrapped(const std::shared_ptr<ProcessGroup>& group,
                                                                  const FsdpOptions& options, int blocks = 2) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, SmallGpt2(blocks));
  return FullyShardedDataParallel::Wrap(std::move(module), group, options);
}

absl::Status Step(FullyShardedDataParallel& model, ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(const TestBatch made, TestBatchOf(*CreateHostDevice(), 0, group.rank()));
  TestBatch batch;
  for (Tensor TestBatch::*t : {&TestBatch::tokens, &TestBatch::targets}) {
    FSDP_ASSIGN_OR_RETURN(batch.*t, Tensor::Empty(*group.device(), (made.*t).dtype(), (made.*t).shape()));
    model.stream().CopyAsync((batch.*t).data(), (made.*t).data(), (made.*t).nbytes());
  }
  FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  Tape tape = model.NewTape();
  CrossEntropyLoss loss;
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
  FSDP_RETURN_IF_ERROR(loss.Forward(logits, batch.targets, tape).status());
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, loss.Backward(1.0f, tape));
  FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
  return model.stream().Synchronize();
}

// This rank's gradients of one step.
absl::StatusOr<std::vector<float>> GradientsOf(FullyShardedDataParallel& model, ProcessGroup& group) {
  FSDP_RETURN_IF_ERROR(Step(model, group));
  std::vector<float> gradients;
  for (ShardedParameter* parameter : model.parameters()) {
    FSDP_ASSIGN_OR_RETURN(const Buffer host, group.device()->AllocatePinned(parameter->grad.nbytes()));
    model.stream().CopyAsync(host.data(), parameter->grad.data(), parameter->grad.nbytes());
    FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
    const auto* values = reinterpret_cast<const float*>(host.data());
    gradients.insert(gradients.end(), values, values + parameter->grad.numel());
    parameter->has_grad = false;
  }
  return gradients;
}

// What the fake NCCL has counted once all ranks have come, and before one goes on.
absl::StatusOr<FakeNcclCounts> CountTogether(ProcessGroup& group) {
  FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
  const FakeNcclCounts counts = CountFakeNccl();
  FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
  return counts;
}

class SymmMemTest : public testing::Test {
 protected:
  ~SymmMemTest() override {
    SetFakeNcclFaults({});
    const FakeNcclCounts left = CountFakeNccl();
    EXPECT_EQ(left.windows, 0);
    EXPECT_EQ(left.allocations, 0);
    EXPECT_EQ(left.communicators, 0);
    EXPECT_EQ(left.left_windows, 0) << "windows of which the communicator was destroyed first";
    EXPECT_EQ(left.freed_windows, 0) << "windows of which the memory was freed first";
  }

  static absl::Status OnRanks(const std::function<absl::Status(const std::shared_ptr<ProcessGroup>& group)>& rank_main,
                              int ranks = kRanks) {
    return RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                            CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(1)));
      const absl::Status status = rank_main(group);
      if (!status.ok()) group->Abort(status);
      return status;
    });
  }
};

TEST_F(SymmMemTest, WindowsAndCopyEnginesChangeNoBitOfFsdp1) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    std::vector<float> usual;
    for (const bool windows : {false, true}) {
      for (const bool copy_engines : {false, true}) {
        if (copy_engines && !windows) continue;
        FsdpOptions options = BlockOptions();
        options.symm_mem_for_comm = windows;
        options.copy_engine_all_gather = copy_engines;
        FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
        FSDP_ASSIGN_OR_RETURN(const auto model, Wrapped(group, options));
        FSDP_ASSIGN_OR_RETURN(const std::vector<float> gradients, GradientsOf(*model, *group));
        FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
        if (usual.empty()) usual = gradients;
        EXPECT_EQ(gradients, usual);
        EXPECT_EQ(after.symmetric > before.symmetric, windows);
        EXPECT_EQ(after.by_copy_engines > before.by_copy_engines, copy_engines);
        EXPECT_EQ(after.windows, windows ? 2 * kRanks : 0) << "an arena for parameters, one for gradients";
      }
    }
    return absl::OkStatus();
  }));
}

TEST_F(SymmMemTest, SettersOfFsdp2TurnWindowsAndCopyEnginesOnAndOffAndChangeNoBit) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
    FullyShardedDataParallel& model = *sharded.model;
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> usual, GradientsOf(model, *group));
    EXPECT_THAT(sharded.root->set_copy_engine_all_gather(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("set_copy_engine_all_gather: the unit's memory is no symmetric window: expected "
                                   "set_symm_mem_for_comm before")));
    for (const bool copy_engines : {false, true}) {
      FSDP_RETURN_IF_ERROR(sharded.OnAll([](FsdpModule& module) { return module.set_symm_mem_for_comm(); }));
      FSDP_RETURN_IF_ERROR(sharded.root->set_copy_engine_all_gather(copy_engines));
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
      FSDP_ASSIGN_OR_RETURN(const std::vector<float> gradients, GradientsOf(model, *group));
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
      EXPECT_EQ(gradients, usual);
      EXPECT_GT(after.symmetric, before.symmetric);
      // Three units forward, and the blocks again for backward; of which the last is kept.
      EXPECT_EQ(after.by_copy_engines - before.by_copy_engines, copy_engines ? 5 * kRanks : 0);
    }
    FSDP_RETURN_IF_ERROR(sharded.OnAll([](FsdpModule& module) { return module.set_symm_mem_for_comm(false); }));
    FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> gradients, GradientsOf(model, *group));
    FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
    EXPECT_EQ(gradients, usual);
    EXPECT_EQ(after.symmetric, before.symmetric);
    EXPECT_EQ(after.windows, 0);
    return absl::OkStatus();
  }));
}

TEST_F(SymmMemTest, HybridModelsHaveWindowsOfTheirShardGroups) {
  constexpr int kFour = 4;
  const auto rank_main = [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    std::vector<float> gradients[2];
    for (const bool windows : {false, true}) {
      FsdpOptions options = BlockOptions();
      options.sharding_strategy = ShardingStrategy::kHybridShard;
      options.shard_group_size = 2;
      options.symm_mem_for_comm = windows;
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
      FSDP_ASSIGN_OR_RETURN(const auto model, Wrapped(group, options));
      FSDP_ASSIGN_OR_RETURN(gradients[windows], GradientsOf(*model, *group));
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
      EXPECT_EQ(after.windows, windows ? 2 * kFour : 0);
      EXPECT_EQ(after.symmetric > before.symmetric, windows);
    }
    EXPECT_EQ(gradients[true], gradients[false]);
    return absl::OkStatus();
  };
  EXPECT_OK(OnRanks(rank_main, kFour));
}

// NCCL's symmetric reductions are of sums only.
TEST_F(SymmMemTest, ForcedSumsAreReducedInWindowsToo) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    int symmetric[2];
    for (const bool force_sum : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
      FSDP_RETURN_IF_ERROR(sharded.OnAll([&](FsdpModule& module) -> absl::Status {
        FSDP_RETURN_IF_ERROR(module.set_symm_mem_for_comm());
        return module.set_force_sum_reduction_for_comms(force_sum);
      }));
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
      FSDP_RETURN_IF_ERROR(Step(*sharded.model, *group));
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
      symmetric[force_sum] = after.symmetric - before.symmetric;
    }
    EXPECT_EQ(symmetric[true] - symmetric[false], 3 * kRanks);
    return absl::OkStatus();
  }));
}

// Memory that is added later, or made anew, becomes part of the windows.
TEST_F(SymmMemTest, MemoryThatComesLaterIsAWindowToo) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
    FSDP_RETURN_IF_ERROR(sharded.OnAll([](FsdpModule& module) { return module.set_symm_mem_for_comm(); }));
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> usual, GradientsOf(*sharded.model, *group));
    FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
    EXPECT_EQ(before.windows, 2 * kRanks);
    FSDP_RETURN_IF_ERROR(sharded.blocks[0]->set_keep_unsharded_storage(true, Recurse::kNo));  // a slot of its own
    FSDP_RETURN_IF_ERROR(sharded.root->set_reduce_scatter_max_input_buffers(3));              // gradients' memory anew
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> gradients, GradientsOf(*sharded.model, *group));
    FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
    EXPECT_EQ(gradients, usual);
    EXPECT_EQ(after.windows, 3 * kRanks);
    EXPECT_EQ(after.symmetric % kRanks, 0);
    return absl::OkStatus();
  }));
}

// Reshard is local, so ranks may give their slots back in different orders.
TEST_F(SymmMemTest, RanksThatReshardInAnotherOrderStillUseEqualOffsets) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
    FSDP_RETURN_IF_ERROR(sharded.OnAll([](FsdpModule& module) { return module.set_symm_mem_for_comm(); }));
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> usual, GradientsOf(*sharded.model, *group));
    for (FsdpModule* block : sharded.blocks) FSDP_RETURN_IF_ERROR(block->Unshard());
    FSDP_RETURN_IF_ERROR(sharded.blocks[group->rank()]->Reshard());
    FSDP_RETURN_IF_ERROR(sharded.blocks[1 - group->rank()]->Reshard());
    FSDP_ASSIGN_OR_RETURN(const std::vector<float> gradients, GradientsOf(*sharded.model, *group));
    EXPECT_EQ(gradients, usual);
    return absl::OkStatus();
  }));
}

TEST_F(SymmMemTest, SlotsAreOneAllocationHoweverManyTheyAre) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    constexpr int kBlocks = 4;
    for (const bool limit : {false, true}) {
      FsdpOptions options = BlockOptions();
      options.limit_all_gathers = limit;
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts before, CountTogether(*group));
      FSDP_ASSIGN_OR_RETURN(const auto model, Wrapped(group, options, kBlocks));
      FSDP_ASSIGN_OR_RETURN(const FakeNcclCounts after, CountTogether(*group));
      // A shard and a gradient of each unit, and the two arenas.
      EXPECT_EQ((after.allocations - before.allocations) / kRanks, 2 * (kBlocks + 1) + 2);
      EXPECT_EQ(model->memory_plan().slots.unsharded == kBlocks, !limit);
    }
    return absl::OkStatus();
  }));
}

TEST_F(SymmMemTest, AnArenaHasTheBytesOfThePlanButForAlignment) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    const int64_t before = group->device()->allocated_bytes();
    FSDP_ASSIGN_OR_RETURN(const auto model, Wrapped(group, BlockOptions()));
    const int64_t more = group->device()->allocated_bytes() - before - model->memory_plan().DeviceBytes(false);
    EXPECT_GE(more, 0);
    EXPECT_LT(more, 256 * 8) << "a root and a slot or two of each kind, and staging";
    return absl::OkStatus();
  }));
}

// A program's own all-gather.
struct OwnAllGather final : AllGatherComm {
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    return Tensor::Empty(*group.device(), dtype, {numel});
  }
  void AllGather(const Tensor& input, const Tensor& output, ProcessGroup& group, Stream& stream) override {
    group.AllGather(input, output, stream);
  }
};

TEST_F(SymmMemTest, CustomCollectivesAndWindowsOfOneUnitAreRefused) {
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
    FSDP_RETURN_IF_ERROR(sharded.blocks[0]->set_custom_all_gather(std::make_shared<OwnAllGather>(), Recurse::kNo));
    EXPECT_THAT(sharded.blocks[0]->set_symm_mem_for_comm(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("set_symm_mem_for_comm: the unit has a custom all-gather or reduce-scatter")));
    FSDP_RETURN_IF_ERROR(sharded.blocks[1]->set_symm_mem_for_comm());
    FSDP_RETURN_IF_ERROR(sharded.blocks[1]->set_custom_all_gather(std::make_shared<OwnAllGather>(), Recurse::kNo));
    EXPECT_THAT(Step(*sharded.model, *group),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("h.1: set_symm_mem_for_comm and a custom AllGatherComm, which allocates its own "
                                   "memory: expected one of the two")));
    return absl::OkStatus();
  }));
}

TEST_F(SymmMemTest, AnNcclThatIsTooOldIsNamedWithItsVersion) {
  SetFakeNcclFaults({.version = 22705});
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.symm_mem_for_comm = options.copy_engine_all_gather = true;
    EXPECT_THAT(Wrapped(group, options).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("copy_engine_all_gather: rank 0 of 2: all-gathers by copy engines: NCCL 2.27.5 is "
                                   "loaded: expected 2.28.0 or later")));
    return absl::OkStatus();
  }));
}

TEST_F(SymmMemTest, GpusThatDoNotReachEachOtherAreRefusedAtTheFirstUse) {
  SetFakeNcclFaults({.no_windows = true});
  EXPECT_OK(OnRanks([](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.symm_mem_for_comm = true;
    EXPECT_THAT(Wrapped(group, options).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("symmetric window: NCCL made none")));
    return absl::OkStatus();
  }));
}

// Without NCCL there is nothing to register with.
TEST(SymmMemOnHostsTest, IsRefusedByTheNameOfTheOptionAndOfTheBackend) {
  EXPECT_OK(RunRanks(kRanks, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.symm_mem_for_comm = true;
    EXPECT_THAT(Wrapped(group, options).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("symm_mem_for_comm: backend local on cpu has no symmetric windows: expected backend "
                                   "nccl, or not this option")));
    options.sharding_strategy = ShardingStrategy::kNoShard;
    EXPECT_THAT(Wrapped(group, options).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("symm_mem_for_comm: no unit is sharded, so nothing is all-gathered")));
    FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
    EXPECT_THAT(sharded.root->set_symm_mem_for_comm(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("set_symm_mem_for_comm: backend local on cpu has no symmetric windows")));
    return absl::OkStatus();
  }));
}

TEST(SymmMemOnHostsTest, CopyEnginesNeedTheWindows) {
  const FsdpOptions options{.copy_engine_all_gather = true};
  EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("copy_engine_all_gather is true, but symm_mem_for_comm is not")));
}

// With one rank nothing is gathered.
TEST(SymmMemOnHostsTest, IsAcceptedWithOneRank) {
  EXPECT_OK(RunRanks(1, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.symm_mem_for_comm = options.copy_engine_all_gather = true;
    FSDP_RETURN_IF_ERROR(Wrapped(group, options).status());
    FSDP_ASSIGN_OR_RETURN(const Sharded sharded, MakeSharded(group));
    FSDP_RETURN_IF_ERROR(sharded.root->set_symm_mem_for_comm());
    return sharded.root->set_copy_engine_all_gather();
  }));
}

}  // namespace
}  // namespace fsdp
