// SPDX-License-Identifier: Apache-2.0
//
// Tensor parallelism together with FSDP against one process with neither. The two differ only in the order of sums: a
// row-parallel product of n terms is added in T runs, which changes it by at most (n + T) rounding errors of the sum of
// magnitudes. Here n <= 24, T <= 3, and magnitudes are below 8, so one sum differs by less than 27 * 2^-24 * 8 =
// 1.3e-5; losses and gradients, which layer norms keep of order one, by a few of these.
#include "fsdp/fsdp/tensor_parallel/parallel_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/tensor_parallel/parallel_model_testutil.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 6;
constexpr float kBound = 5e-5f;  // see above

// The results of one process: losses of each step and rank of data parallelism, gradients of the first step.
struct Reference {
  std::vector<std::vector<float>> losses;
  std::map<std::string, std::vector<float>> first_gradients, initial_values;
};

absl::StatusOr<Reference> TrainInOneProcess(int dp) {
  const std::shared_ptr<Device> device = CreateHostDevice();
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("compute"));
  FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const LayerOps> ops, LayerOpsFor(*device));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> module, MakeParallelModule(nullptr));
  module->AssignNames();
  FSDP_RETURN_IF_ERROR(module->Materialize(*device, 11));
  FSDP_ASSIGN_OR_RETURN(const auto parameters, UnshardedParameters(*module, *device));
  std::vector<ShardedParameter*> all;
  for (const auto& parameter : parameters) all.push_back(parameter.get());
  Sgd sgd(all, {.lr = 0.1});
  Reference reference;
  for (const ShardedParameter* p : all) {
    reference.initial_values[p->fqn].assign(p->data.data_as<float>(), p->data.data_as<float>() + p->data.numel());
  }
  for (int step = 0; step < kSteps; ++step) {
    reference.losses.emplace_back();
    for (const ShardedParameter* p : all) device->ops().Zero(p->grad, *stream);
    for (int rank = 0; rank < dp; ++rank) {
      Tape tape(*stream, *ops);
      FSDP_ASSIGN_OR_RETURN(const float loss, LossOf(*module, step, rank, tape));
      reference.losses.back().push_back(loss);
    }
    for (ShardedParameter* p : all) {
      for (int64_t i = 0; i < p->grad.numel(); ++i) p->grad.data_as<float>()[i] /= static_cast<float>(dp);
      p->has_grad = true;
      if (step != 0) continue;
      reference.first_gradients[p->fqn].assign(p->grad.data_as<float>(), p->grad.data_as<float>() + p->grad.numel());
    }
    FSDP_RETURN_IF_ERROR(sgd.Step(*stream));
    FSDP_RETURN_IF_ERROR(stream->Synchronize());
  }
  return reference;
}

void ExpectNear(const std::vector<float>& got, const Tensor& tensor, const std::string& name) {
  ASSERT_EQ(static_cast<int64_t>(got.size()), tensor.numel()) << name;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], tensor.data_as<float>()[i], kBound) << name << " " << i;
  }
}

// Sizes of the mesh, API, use_orig_params.
class TensorParallelTest : public testing::TestWithParam<std::tuple<std::vector<int>, TestApi, bool>> {
 protected:
  absl::Status Run(const std::function<absl::Status(ParallelModel& made)>& rank_main) const {
    const auto& [sizes, api, use_orig_params] = GetParam();
    int ranks = 1;
    for (const int size : sizes) ranks *= size;
    return RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(ParallelModel made, ParallelModel::Make(group, sizes, api, use_orig_params));
      return rank_main(made);
    });
  }

  int DataParallelSize() const {
    const std::vector<int>& sizes = std::get<0>(GetParam());
    int ranks = 1;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) ranks *= sizes[i];
    return ranks;
  }
};

TEST_P(TensorParallelTest, StartsFromTheValuesOfOneProcessBitForBit) {
  absl::StatusOr<Reference> reference = TrainInOneProcess(1);
  ASSERT_OK(reference);
  EXPECT_OK(Run([&](ParallelModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    for (const auto& [name, values] : reference->initial_values) {
      const ShardedTensor* tensor = state.FindTensor(StateKey::Model(name));
      if (tensor == nullptr) return absl::NotFoundError(name);
      const Tensor& data = tensor->shards.at(0).data;
      EXPECT_EQ(data.nbytes(), static_cast<int64_t>(values.size() * sizeof(float))) << name;
      EXPECT_EQ(std::memcmp(data.data(), values.data(), data.nbytes()), 0) << name;
    }
    return absl::OkStatus();
  }));
}

TEST_P(TensorParallelTest, LossesAndEveryGradientEqualOneProcessWithinTheBound) {
  absl::StatusOr<Reference> reference = TrainInOneProcess(DataParallelSize());
  ASSERT_OK(reference);
  EXPECT_OK(Run([&](ParallelModel& made) -> absl::Status {
    Sgd sgd(made.model->parameters(), {.lr = 0.1});
    for (int step = 0; step < kSteps; ++step) {
      Tape tape = made.model->NewTape();
      FSDP_ASSIGN_OR_RETURN(const float loss, LossOf(made.model->module(), step, made.dp_rank(), tape));
      EXPECT_NEAR(loss, reference->losses[step][made.dp_rank()], kBound) << step;
      for (const auto& [name, gradient] : reference->first_gradients) {
        if (step != 0) break;
        FSDP_ASSIGN_OR_RETURN(const Tensor whole, made.model->GetFullGradient(name));
        ExpectNear(gradient, whole, name);
      }
      FSDP_RETURN_IF_ERROR(sgd.Step(made.model->stream()));
      sgd.ZeroGrad();
    }
    return made.model->stream().Synchronize();
  }));
}

// Cut parameters are summed over tp, copies are not: either mistake changes the norm by far more than the bound.
TEST_P(TensorParallelTest, TheNormOfClippingCountsEveryElementOnce) {
  EXPECT_OK(Run([&](ParallelModel& made) -> absl::Status {
    Tape tape = made.model->NewTape();
    FSDP_RETURN_IF_ERROR(LossOf(made.model->module(), 0, made.dp_rank(), tape).status());
    double squares = 0, largest = 0;
    for (const ShardedParameter* parameter : made.model->parameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor whole, made.model->GetFullGradient(parameter->fqn));
      EXPECT_EQ(whole.shape(), parameter->whole_shape());
      for (int64_t i = 0; i < whole.numel(); ++i) {
        squares += std::pow(whole.data_as<float>()[i], 2);
        largest = std::max<double>(largest, std::abs(whole.data_as<float>()[i]));
      }
    }
    const auto norm = static_cast<float>(std::sqrt(squares));
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF), IsOkAndHolds(testing::FloatNear(norm, 1e-5f * norm)));
    EXPECT_THAT(made.model->ClipGradNorm(HUGE_VALF, HUGE_VAL), IsOkAndHolds(static_cast<float>(largest)));
    FSDP_ASSIGN_OR_RETURN(const GradClip clip, made.model->ClipGradNormAsync(HUGE_VALF));
    EXPECT_THAT(clip.Norm(), IsOkAndHolds(testing::FloatNear(norm, 1e-5f * norm)));
    return absl::OkStatus();
  }));
}

// Copies of a parameter on the ranks of tp stay equal, since their gradients are equal in every bit.
TEST_P(TensorParallelTest, CopiesOfAParameterStayEqualInEveryBit) {
  EXPECT_OK(Run([&](ParallelModel& made) -> absl::Status {
    for (int step = 0; step < kSteps; ++step) FSDP_RETURN_IF_ERROR(made.Train(step, 0.5f).status());
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> tp, made.mesh->group("tp"));
    for (const ShardedParameter* parameter : made.model->parameters()) {
      if (parameter->part) continue;
      const std::string mine(parameter->data.data_as<const char>(), parameter->data.nbytes());
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, tp->AllGatherObject(mine));
      for (const std::string& other : all) EXPECT_EQ(other, mine) << parameter->fqn;
    }
    return absl::OkStatus();
  }));
}

// Layers compute with their parts, so between steps the parts are whole.
TEST_P(TensorParallelTest, SummonedParametersAreTheRanksPartsAndEditsOfThemAreKept) {
  EXPECT_OK(Run([&](ParallelModel& made) -> absl::Status {
    {
      FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
      for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
        EXPECT_EQ(parameter->data.shape(), parameter->shape) << name;
        float* data = parameter->data.data_as<float>();
        for (int64_t i = 0; i < parameter->data.numel(); ++i) data[i] = 2 * data[i];
      }
      FSDP_RETURN_IF_ERROR(guard->Close());
    }
    absl::StatusOr<Reference> reference = TrainInOneProcess(1);
    FSDP_RETURN_IF_ERROR(reference.status());
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    for (const auto& [name, values] : reference->initial_values) {
      const Tensor& whole = state.FindTensor(StateKey::Model(name))->shards.at(0).data;
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(whole.data_as<float>()[i], 2 * values[i]) << name;
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Meshes, TensorParallelTest,
                         testing::Values(std::tuple(std::vector<int>{2, 2}, TestApi::kFsdp1, false),
                                         std::tuple(std::vector<int>{2, 2}, TestApi::kFsdp1, true),
                                         std::tuple(std::vector<int>{2, 2}, TestApi::kFsdp2, false),
                                         std::tuple(std::vector<int>{1, 3}, TestApi::kFsdp1, false),
                                         std::tuple(std::vector<int>{1, 2}, TestApi::kFsdp2, false),
                                         std::tuple(std::vector<int>{3, 2}, TestApi::kFsdp2, false),
                                         std::tuple(std::vector<int>{2, 2, 2}, TestApi::kFsdp1, false),
                                         std::tuple(std::vector<int>{1, 2, 2}, TestApi::kFsdp2, false)));

// A group of one sums nothing, so the order of sums is the same as in plain layers.
TEST(ParallelLinearTest, OnAGroupOfOneLossesEqualPlainLayersBitForBit) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(ParallelModel parallel, ParallelModel::Make(group, {2, 1}));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeParallelModule(nullptr));
    FSDP_ASSIGN_OR_RETURN(const auto plain,
                          FullyShardedDataParallel::Wrap(std::move(module), group, {.init_seed = 11}));
    AdamW optimizer(AdamW::DecayMatricesOnly(plain->parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
    for (int step = 0; step < kSteps; ++step) {
      Tape tape = plain->NewTape();
      FSDP_ASSIGN_OR_RETURN(const float expected, LossOf(plain->module(), step, group->rank(), tape));
      FSDP_RETURN_IF_ERROR(optimizer.Step(plain->stream()));
      optimizer.ZeroGrad();
      FSDP_RETURN_IF_ERROR(plain->stream().Synchronize());
      EXPECT_THAT(parallel.Train(step), IsOkAndHolds(expected)) << step;
    }
    return absl::OkStatus();
  }));
}

TEST(ParallelLinearTest, EachParameterKnowsItsPartOfTheWholeTensor) {
  EXPECT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const Initializer zero = Initializer::Constant(0);
    FSDP_ASSIGN_OR_RETURN(const auto column, ColumnParallelLinear::Create(4, 6, zero, group, /*bias=*/true));
    FSDP_ASSIGN_OR_RETURN(const auto row, RowParallelLinear::Create(6, 4, zero, group, /*bias=*/true));
    const Parameter& up = *column->own_parameters()[0].second;
    const Parameter& down = *row->own_parameters()[0].second;
    EXPECT_EQ(up.shape, Shape({2, 4}));
    EXPECT_EQ(up.part, (ParameterPart{{6, 4}, 0, 2 * group->rank()}));
    EXPECT_EQ(column->own_parameters()[1].second->part, (ParameterPart{{6}, 0, 2 * group->rank()}));
    EXPECT_EQ(down.shape, Shape({4, 2}));
    EXPECT_EQ(down.part, (ParameterPart{{4, 6}, 1, 2 * group->rank()}));
    EXPECT_EQ(row->own_parameters()[1].second->part, std::nullopt);
    return absl::OkStatus();
  }));
}

TEST(ParallelLinearTest, FeaturesThatTheRanksDoNotDivideAndNoGroupAreRefusedByName) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    using Code = absl::StatusCode;
    const Initializer zero = Initializer::Constant(0);
    EXPECT_THAT(
        ColumnParallelLinear::Create(4, 5, zero, group),
        StatusIs(Code::kInvalidArgument, HasSubstr("out_features=5: expected a multiple of the group's 2 ranks")));
    EXPECT_THAT(RowParallelLinear::Create(7, 4, zero, group),
                StatusIs(Code::kInvalidArgument, HasSubstr("RowParallelLinear: in_features=7")));
    EXPECT_THAT(RowParallelLinear::Create(6, 4, zero, nullptr),
                StatusIs(Code::kInvalidArgument, HasSubstr("process group is null")));
    return absl::OkStatus();
  }));
}

// FSDP must know the ranks that share the parts: it derives them from the submesh.
TEST(ParallelLinearTest, FsdpRefusesAMeshThatDoesNotTellTheRanksOfTheParts) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    using Code = absl::StatusCode;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2, 2}, {"dp", "tp"}));
    FSDP_ASSIGN_OR_RETURN(const auto dp, mesh->Submesh({"dp"}));
    const auto wrap = [&](int dim, ShardGroups groups) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeParallelModule(mesh->group(dim)));
      return FullyShardedDataParallel::Wrap(std::move(module), std::move(groups)).status();
    };
    EXPECT_THAT(wrap(1, group), StatusIs(Code::kInvalidArgument, HasSubstr("was given no mesh: expected a submesh")));
    EXPECT_THAT(wrap(1, mesh), StatusIs(Code::kInvalidArgument, HasSubstr("was given mesh dp=2 x tp=2")));
    EXPECT_THAT(wrap(0, dp), StatusIs(Code::kInvalidArgument, HasSubstr("make parallel layers on the group")));
    return absl::OkStatus();
  }));
}

TEST(ParallelLinearTest, FsdpTakesOneOrTwoDimensions) {
  EXPECT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    using Code = absl::StatusCode;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {1, 2, 2}, {"pp", "dp", "tp"}));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeParallelModule(nullptr));
    EXPECT_THAT(
        FullyShard(*module, mesh),
        StatusIs(Code::kInvalidArgument, HasSubstr("expects a 1D or 2D DeviceMesh but got pp=1 x dp=2 x tp=2")));
    EXPECT_THAT(FullyShardedDataParallel::Wrap(std::move(module), mesh),
                StatusIs(Code::kInvalidArgument, HasSubstr("has 3 dimensions: expected one (shard) or two")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
