// SPDX-License-Identifier: Apache-2.0
//
// The executor with FSDP2's settings and controls: rows of every parameter, averages in the collective, and the
// switches that a program may change between passes.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "fsdp/tensor/convert_elements.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Each;
using testing::HasSubstr;
using Log = RecordingProcessGroup::Log;
using Step = std::function<absl::Status(TestUnits& made, Log& log)>;

// Runs `step` on ranks whose collectives are recorded as "world".
absl::Status OnRanks(int world_size, const UnitSettings& settings, const Step& step) {
  return RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    const int rank = inner->rank();
    auto log = std::make_shared<Log>();
    auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
    FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(group, rank, settings));
    log->clear();
    return step(made, *log);
  });
}

// The same over a 2 x 2 mesh: "shard" and "replicate".
absl::Status OnMesh(const UnitSettings& settings, const Step& step) {
  return RunRanks(4, [&](std::shared_ptr<ProcessGroup> world) -> absl::Status {
    auto log = std::make_shared<Log>();
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(world, {2, 2}, {"replicate", "shard"}));
    auto shard = std::make_shared<RecordingProcessGroup>(mesh->group(1), "shard", log);
    auto replicate = std::make_shared<RecordingProcessGroup>(mesh->group(0), "replicate", log);
    FSDP_ASSIGN_OR_RETURN(TestUnits made, MakeTestUnits(std::pair(shard, replicate), world->rank(), settings));
    log->clear();
    return step(made, *log);
  });
}

UnitSettings HybridSettings() {
  UnitSettings settings = Fsdp2Settings();
  settings.sharding_strategy = ShardingStrategy::kHybridShard;
  return settings;
}

int Take(Log& log, const char* prefix) { return CountEntries(log, prefix); }

TEST(Fsdp2RuntimeTest, TrainsToTheSameBitsAsFsdp1WhereFactorsArePowersOfTwo) {
  for (const int world_size : {1, 2, 4}) {
    WholeTensors rows, flat;
    ASSERT_OK(OnRanks(world_size, Fsdp2Settings(), [&](TestUnits& made, Log&) -> absl::Status {
      for (int step = 0; step < 5; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      rows.AddParameters(made.parameters());
      return absl::OkStatus();
    }));
    ASSERT_OK(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
      for (int step = 0; step < 5; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      flat.AddParameters(made.model->parameters());
      return absl::OkStatus();
    }));
    EXPECT_FALSE(rows.empty());
    EXPECT_TRUE(rows == flat) << world_size;
  }
}

TEST(Fsdp2RuntimeTest, EachRankHasWholeRowsOfEveryParameter) {
  ASSERT_OK(OnRanks(3, Fsdp2Settings(), [](TestUnits& made, Log&) -> absl::Status {
    for (const ShardedParameter* p : made.parameters()) {
      EXPECT_EQ(p->interval, Dim0Chunk(p->shape, 3, made.rank)) << p->fqn;
    }
    return absl::OkStatus();
  }));
}

TEST(Fsdp2RuntimeTest, CollectivesAverage) {
  ASSERT_OK(OnRanks(3, Fsdp2Settings(), [](TestUnits& made, Log& log) -> absl::Status {
    FSDP_RETURN_IF_ERROR(made.Train(0));
    EXPECT_EQ(Take(log, "all_gather"), 3 + 2);
    EXPECT_EQ(Take(log, "reduce_scatter avg"), 3);
    EXPECT_EQ(Take(log, "reduce_scatter world"), 0);
    return absl::OkStatus();
  }));
}

TEST(Fsdp2RuntimeTest, ReshardAfterForwardMayBeSetForEveryUnit) {
  for (const bool reshard : {true, false}) {
    ASSERT_OK(OnRanks(2, Fsdp2Settings(), [&](TestUnits& made, Log& log) -> absl::Status {
      for (const auto& unit : made.units->units()) unit->controls.reshard_after_forward = reshard;
      for (int step = 0; step < 2; ++step) {
        log.clear();
        FSDP_RETURN_IF_ERROR(made.Train(step));
        EXPECT_EQ(Take(log, "all_gather"), reshard ? 3 + 3 : 3);
        EXPECT_EQ(Take(log, "reduce_scatter"), 3);
      }
      return absl::OkStatus();
    }));
  }
}

TEST(Fsdp2RuntimeTest, ReshardingToASmallerGroupGathersFromItInBackward) {
  UnitSettings settings = Fsdp2Settings();
  WholeTensors grouped, plain;
  ASSERT_OK(OnRanks(4, settings, [&](TestUnits& made, Log&) -> absl::Status {
    for (int step = 0; step < 3; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
    plain.AddParameters(made.parameters());
    return absl::OkStatus();
  }));
  settings.post_forward_group_size = 2;
  ASSERT_OK(OnRanks(4, settings, [&](TestUnits& made, Log& log) -> absl::Status {
    for (const auto& unit : made.units->units()) unit->controls.reshard_after_forward = true;
    for (int step = 0; step < 3; ++step) {
      log.clear();
      FSDP_RETURN_IF_ERROR(made.Train(step));
      EXPECT_EQ(Take(log, "all_gather world "), 3);
      EXPECT_EQ(Take(log, "all_gather world/2"), 3);
    }
    grouped.AddParameters(made.parameters());
    const std::vector<std::string> names{"root", "a", "b"};
    EXPECT_THAT(RenderSchedule(made.executor->PlanStep(1), names),
                testing::AllOf(HasSubstr("reshard_to_group a"), HasSubstr("reshard_to_group root\nall_gather root")));
    return absl::OkStatus();
  }));
  EXPECT_TRUE(grouped == plain);
}

TEST(Fsdp2RuntimeTest, WithoutGradientSyncGradientsWaitForTheNextBackward) {
  ASSERT_OK(OnRanks(2, Fsdp2Settings(), [](TestUnits& made, Log& log) -> absl::Status {
    for (const auto& unit : made.units->units()) unit->controls.requires_gradient_sync = false;
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
    EXPECT_EQ(Take(log, "reduce_scatter"), 0);
    for (const ShardedParameter* p : made.parameters()) EXPECT_FALSE(p->has_grad);
    for (const auto& unit : made.units->units()) unit->controls.requires_gradient_sync = true;
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(1));
    EXPECT_EQ(Take(log, "reduce_scatter"), 3);
    return absl::OkStatus();
  }));
}

// In bfloat16 a small second gradient would be lost when added to a large first one.
TEST(Fsdp2RuntimeTest, UnsyncedGradientsAccumulateInTheReduceDtype) {
  UnitSettings settings = Fsdp2Settings();
  ApplyPolicy({.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}, settings);
  WholeTensors together, first, second;
  const auto gradients_of = [&](std::vector<int> steps, WholeTensors& into) {
    return OnRanks(1, settings, [&, steps](TestUnits& made, Log&) -> absl::Status {
      for (size_t i = 0; i < steps.size(); ++i) {
        const bool last = i + 1 == steps.size();
        for (const auto& unit : made.units->units()) unit->controls.requires_gradient_sync = last;
        FSDP_RETURN_IF_ERROR(made.ComputeGradients(steps[i]));
      }
      into.AddGradients(made.parameters());
      return absl::OkStatus();
    });
  };
  ASSERT_OK(gradients_of({0, 1}, together));
  ASSERT_OK(gradients_of({0}, first));
  ASSERT_OK(gradients_of({1}, second));
  for (const auto& [name, sum] : together.tensors()) {
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(sum[i], first.tensors().at(name)[i] + second.tensors().at(name)[i]) << name << " " << i;
    }
  }
}

std::vector<double> ValuesOf(const Tensor& tensor) {
  std::vector<double> values(tensor.shape().numel());
  EXPECT_OK(Convert(tensor.dtype(), tensor.data(), DType::kFloat64, values.data(), tensor.shape().numel()));
  return values;
}

void FillGradients(const Unit& unit, double value) {
  for (const auto& parameter : unit.parameters) {
    ASSERT_OK(parameter->GradToWrite().status());
    for (int64_t i = 0; i < parameter->shape.numel(); ++i) {
      void* const element = static_cast<char*>(parameter->grad.data()) + i * SizeOf(parameter->grad.dtype());
      ASSERT_OK(Convert(DType::kFloat64, &value, parameter->grad.dtype(), element, 1));
    }
  }
}

// Some kernels compute the gradients of bfloat16 parameters in float32. bfloat16 cannot represent 1 + 2^-12.
TEST(Fsdp2RuntimeTest, AWidenedGradientKeepsWhatTheComputeDtypeCannotHold) {
  constexpr double kFine = 1 + 1.0 / 4096;
  for (const DType reduce : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(DTypeName(reduce));
    UnitSettings settings = Fsdp2Settings();
    ApplyPolicy({.param_dtype = DType::kBFloat16, .reduce_dtype = reduce}, settings);
    ASSERT_OK(OnRanks(2, settings, [&](TestUnits& made, Log&) -> absl::Status {
      const Unit& unit = made.units->unit(1);
      UnitRuntime& runtime = made.executor->runtime();
      GradientReduction& gradients = runtime.gradients();
      const bool widens = reduce == DType::kFloat32;
      // A backward whose gradients are `value`; a backward that widens has had 1 before.
      const auto backward = [&](GradientReduction::Sync sync, bool widen, double value) -> absl::Status {
        FSDP_RETURN_IF_ERROR(gradients.Bind(1, sync));
        FSDP_RETURN_IF_ERROR(runtime.Synchronize());
        if (widen) {
          FillGradients(unit, 1);
          FSDP_RETURN_IF_ERROR(gradients.Widen(1));
          FSDP_RETURN_IF_ERROR(runtime.Synchronize());
          EXPECT_THAT(ValuesOf(unit.parameters[0]->grad), Each(1));  // what was added before is kept
        }
        EXPECT_EQ(unit.parameters[0]->grad.dtype(), widens ? DType::kFloat32 : DType::kBFloat16);
        FillGradients(unit, value);
        gradients.Unbind(1, sync);
        if (sync == GradientReduction::Sync::kReduce) FSDP_RETURN_IF_ERROR(gradients.ReduceScatter(1));
        return runtime.Synchronize();
      };
      const auto expect_all = [&](double value) {
        for (const auto& parameter : unit.sharded_parameters) {
          EXPECT_THAT(ValuesOf(parameter->grad), Each(value)) << parameter->fqn;
          parameter->has_grad = false;
        }
      };
      FSDP_RETURN_IF_ERROR(backward(GradientReduction::Sync::kReduce, true, kFine));
      expect_all(widens ? kFine : 1);
      // It stays wide, and begins at zero.
      FSDP_RETURN_IF_ERROR(backward(GradientReduction::Sync::kReduce, false, 2 * kFine));
      expect_all(widens ? 2 * kFine : 2);
      // Without synchronisation the next backward continues from it.
      FSDP_RETURN_IF_ERROR(backward(GradientReduction::Sync::kKeepLocal, false, kFine));
      FSDP_RETURN_IF_ERROR(gradients.Bind(1, GradientReduction::Sync::kReduce));
      FSDP_RETURN_IF_ERROR(runtime.Synchronize());
      EXPECT_THAT(ValuesOf(unit.parameters[0]->grad), Each(widens ? kFine : 1));
      return absl::OkStatus();
    }));
  }
}

TEST(Fsdp2RuntimeTest, AllReduceMayBePutOffAndCatchesUp) {
  WholeTensors put_off, at_once;
  ASSERT_OK(OnMesh(HybridSettings(), [&](TestUnits& made, Log& log) -> absl::Status {
    for (const auto& unit : made.units->units()) unit->controls.requires_all_reduce = false;
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
    EXPECT_EQ(Take(log, "reduce_scatter avg shard"), 3);
    EXPECT_EQ(Take(log, "all_reduce"), 0);
    for (const auto& unit : made.units->units()) unit->controls.requires_all_reduce = true;
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(1));
    EXPECT_EQ(Take(log, "all_reduce avg replicate"), 3);
    put_off.AddGradients(made.parameters());
    return absl::OkStatus();
  }));
  ASSERT_OK(OnMesh(HybridSettings(), [&](TestUnits& made, Log&) -> absl::Status {
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(1));
    at_once.AddGradients(made.parameters());
    return absl::OkStatus();
  }));
  for (const auto& [name, values] : at_once.tensors()) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(put_off.tensors().at(name)[i], values[i], 1e-6) << name;
  }
}

TEST(Fsdp2RuntimeTest, TheDivideFactorReplacesTheNumberOfRanks) {
  WholeTensors mean, sum;
  for (const bool divide : {true, false}) {
    ASSERT_OK(OnRanks(4, Fsdp2Settings(), [&](TestUnits& made, Log& log) -> absl::Status {
      if (!divide) {
        for (const auto& unit : made.units->units()) unit->controls.gradient_divide_factor = 1;
      }
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
      EXPECT_EQ(Take(log, "reduce_scatter avg"), divide ? 3 : 0);
      (divide ? mean : sum).AddGradients(made.parameters());
      return absl::OkStatus();
    }));
  }
  for (const auto& [name, values] : sum.tensors()) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 4 * mean.tensors().at(name)[i]) << name;
  }
}

// Gathers and scatters by the group, from its own memory, and counts.
class CountingComm final : public AllGatherComm, public ReduceScatterComm {
 public:
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    ++allocations;
    return Tensor::Empty(*group.device(), dtype, {numel});
  }
  void AllGather(const Tensor& input, const Tensor& output, ProcessGroup& group, Stream& stream) override {
    ++calls;
    group.AllGather(input, output, stream);
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, ProcessGroup& group,
                     Stream& stream) override {
    ++calls;
    group.ReduceScatter(input, output, op, stream);
  }

  int allocations = 0, calls = 0;
};

TEST(Fsdp2RuntimeTest, CustomCommsReplaceThoseOfOneUnitAndChangeNoBit) {
  WholeTensors custom, plain;
  for (const bool own : {true, false}) {
    ASSERT_OK(OnRanks(3, Fsdp2Settings(), [&](TestUnits& made, Log&) -> absl::Status {
      auto gather = std::make_shared<CountingComm>(), scatter = std::make_shared<CountingComm>();
      if (own) {
        made.units->unit(1).controls.all_gather = gather;
        made.units->unit(1).controls.reduce_scatter = scatter;
      }
      for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
      EXPECT_EQ(gather->calls, own ? 4 : 0);
      EXPECT_EQ(scatter->calls, own ? 2 : 0);
      EXPECT_EQ(gather->allocations, own ? 4 : 0);
      EXPECT_EQ(scatter->allocations, own ? 2 : 0);
      (own ? custom : plain).AddParameters(made.parameters());
      return absl::OkStatus();
    }));
  }
  EXPECT_TRUE(custom == plain);
}

TEST(Fsdp2RuntimeTest, TheAllReduceHookSeesTheReducedGradient) {
  WholeTensors hooked, plain;
  for (const bool hook : {true, false}) {
    ASSERT_OK(OnRanks(2, Fsdp2Settings(), [&](TestUnits& made, Log&) -> absl::Status {
      if (hook) {
        made.units->unit(2).controls.all_reduce_hook = [](const Tensor& reduced, Stream& stream) {
          stream.device().ops().CastDivide(reduced, reduced, 0.5, stream);
          return absl::OkStatus();
        };
      }
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
      std::vector<ShardedParameter*> of_unit;
      for (const auto& p : made.units->unit(2).sharded_parameters) of_unit.push_back(p.get());
      (hook ? hooked : plain).AddGradients(of_unit);
      return absl::OkStatus();
    }));
  }
  for (const auto& [name, values] : plain.tensors()) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(hooked.tensors().at(name)[i], 2 * values[i]) << name;
  }
}

TEST(Fsdp2RuntimeTest, PrefetchListsMoveAllGathersAndMayNeedMoreSlots) {
  ASSERT_OK(OnRanks(2, Fsdp2Settings(), [](TestUnits& made, Log&) -> absl::Status {
    made.units->unit(0).controls.forward_prefetch = std::vector<int>{1, 2};
    made.units->unit(0).controls.backward_prefetch = std::vector<int>{2, 1};
    const std::vector<std::string> names{"root", "a", "b"};
    const std::string plan = RenderSchedule(made.executor->PlanStep(1), names);
    EXPECT_THAT(plan, HasSubstr("all_gather root\nall_gather a\nall_gather b\nforward root\n"));
    EXPECT_THAT(plan, HasSubstr("all_gather b\nall_gather a\nbackward root\nbackward b\n"));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
    return absl::OkStatus();
  }));
}

TEST(Fsdp2RuntimeTest, AUnitCanBeUnshardedByHandAheadOfItsForward) {
  ASSERT_OK(OnRanks(2, Fsdp2Settings(), [](TestUnits& made, Log& log) -> absl::Status {
    FSDP_RETURN_IF_ERROR(made.executor->Unshard(1));
    FSDP_RETURN_IF_ERROR(made.executor->Unshard(1));
    EXPECT_EQ(Take(log, "all_gather"), 1);
    FSDP_RETURN_IF_ERROR(made.executor->WaitForUnshard(1));
    for (const auto& p : made.units->unit(1).parameters) EXPECT_TRUE(p->data.defined());
    FSDP_RETURN_IF_ERROR(made.Train(0));
    EXPECT_EQ(Take(log, "all_gather"), 3 + 2);
    FSDP_RETURN_IF_ERROR(made.executor->Unshard(2));
    made.executor->Reshard(2);
    for (const auto& p : made.units->unit(2).parameters) EXPECT_FALSE(p->data.defined());
    return made.Train(1);
  }));
}

TEST(Fsdp2RuntimeTest, GradientsAddUpOverBackwardsOfWhichOneIsTheLast) {
  ASSERT_OK(OnRanks(2, Fsdp2Settings(), [](TestUnits& made, Log&) -> absl::Status {
    made.executor->set_is_last_backward(false);
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0));
    made.executor->set_is_last_backward(true);
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(1));
    for (const ShardedParameter* p : made.parameters()) EXPECT_TRUE(p->has_grad);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
