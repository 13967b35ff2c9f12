// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/fully_shard.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/module_list.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;

// The result of `fail` on each of 3 ranks over a mesh of one dimension.
absl::Status OnMesh(const std::function<absl::Status(const std::shared_ptr<const DeviceMesh>& mesh)>& fail) {
  return RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(std::move(group), {kRanks}, {"shard"}));
    return fail(mesh);
  });
}

TEST(FullyShardTest, AContainerIsRefused) {
  EXPECT_THAT(OnMesh([](const auto& mesh) {
                ModuleList list;
                return FullyShard(list, mesh).status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("FullyShard of a ModuleList"), HasSubstr("apply it to the children"))));
}

TEST(FullyShardTest, ASecondCallOnAModuleIsRefused) {
  EXPECT_THAT(OnMesh([](const auto& mesh) -> absl::Status {
                TestSequence model;
                FSDP_RETURN_IF_ERROR(FullyShard(model, mesh).status());
                return FullyShard(model, mesh).status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("that has been sharded already")));
}

TEST(FullyShardTest, AScalarParameterIsRefusedByName) {
  EXPECT_THAT(OnMesh([](const auto& mesh) {
                TestSequence model;
                model.AddSequence()->AddUnused("scale", {});
                return FullyShard(model, mesh).status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("parameter \"0.scale\" is a scalar"),
                                                                 HasSubstr("expected a tensor of shape [1]"))));
}

TEST(FullyShardTest, AnIntegerParameterIsRefusedByName) {
  EXPECT_THAT(OnMesh([](const auto& mesh) {
                TestSequence model;
                model.AddUnused("ids", {3})->dtype = DType::kInt32;
                return FullyShard(model, mesh).status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter \"ids\" is int32")));
}

TEST(FullyShardTest, DimensionsOtherThan0MustBeDividedByTheRanks) {
  const auto place_on = [](int dimension, const std::optional<ParameterPart>& part = {}) {
    return OnMesh([&](const auto& mesh) {
      TestSequence model;
      model.AddUnused("weight", {4, 6, 5})->part = part;
      FullyShardOptions options;
      options.shard_placement_fn = [=](const Parameter&) { return std::optional<int>(dimension); };
      return FullyShard(model, mesh, options).status();
    });
  };
  EXPECT_OK(place_on(0));
  EXPECT_OK(place_on(-3));
  EXPECT_OK(place_on(1));
  EXPECT_OK(place_on(-2));
  EXPECT_THAT(place_on(-1),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("parameter \"weight\" [4, 6, 5]: dimension -1 is not divided by 3 ranks")));
  EXPECT_THAT(place_on(3), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dimension 3 is out of range")));
  EXPECT_THAT(place_on(-4), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dimension -4 is out of range")));
  EXPECT_THAT(place_on(1, ParameterPart{{8, 6, 5}, 0, 4}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("dimension 1 of a part of [8, 6, 5]: expected 0 for parameters of parallel layers")));
}

TEST(FullyShardTest, ReshardAfterForwardMustDivideTheShardGroup) {
  EXPECT_THAT(OnMesh([](const auto& mesh) {
                TestSequence model;
                return FullyShard(model, mesh, {.reshard_after_forward = 2}).status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("reshard_after_forward=2: expected a divisor of the shard group's 3 ranks")));
}

TEST(FullyShardTest, AUnitOfSeveralModulesCannotBeTheRoot) {
  EXPECT_THAT(OnMesh([](const auto& mesh) -> absl::Status {
                TestSequence model;
                Module* first = model.AddLinear(3, 5);
                Module* second = model.AddLinear(5, 7);
                FSDP_ASSIGN_OR_RETURN(FsdpModule * group, FullyShard(std::vector<Module*>{first, second}, mesh));
                return group->parameters().status();
              }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a unit of 2 modules cannot be the root")));
}

TEST(FullyShardTest, AModuleThatWasARootCannotJoinAnother) {
  EXPECT_THAT(OnMesh([](const auto& mesh) -> absl::Status {
                TestSequence model;
                FSDP_ASSIGN_OR_RETURN(FsdpModule * inner, FullyShard(*model.AddLinear(3, 5), mesh));
                FSDP_ASSIGN_OR_RETURN(FsdpModule * outer, FullyShard(model, mesh));
                FSDP_RETURN_IF_ERROR(inner->parameters().status());
                return outer->parameters().status();
              }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("module \"0\" has already been lazily initialized as a root of its own")));
}

TEST(FullyShardTest, AnInnerModuleUsedAsTheRootIsAnError) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.root->parameters().status());
    EXPECT_THAT(test.blocks[1]->parameters().status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("module \"1\" is not the root")));
    EXPECT_TRUE(test.root->is_root());
    EXPECT_FALSE(test.blocks[1]->is_root());
    return absl::OkStatus();
  }));
}

TEST(FullyShardTest, ParametersSharedAcrossUnitsAreRefusedByBothNames) {
  EXPECT_THAT(OnMesh([](const auto& mesh) -> absl::Status {
                TestSequence model;
                Conv1D* first = model.AddLinear(3, 3);
                TestSequence* second = model.AddSequence();
                second->AddAlias("tied", first->own_parameters()[0].second);
                FSDP_RETURN_IF_ERROR(FullyShard(*first, mesh).status());
                FSDP_RETURN_IF_ERROR(FullyShard(*second, mesh).status());
                FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
                return root->parameters().status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parameter \"0.weight\" is shared across units"), HasSubstr("\"1.tied\""))));
}

TEST(FullyShardTest, OneUnitOfBothModulesMayShareAParameter) {
  EXPECT_OK(OnMesh([](const auto& mesh) -> absl::Status {
    TestSequence model;
    Conv1D* first = model.AddLinear(3, 3);
    TestSequence* second = model.AddSequence();
    second->AddAlias("tied", first->own_parameters()[0].second);
    FSDP_RETURN_IF_ERROR(FullyShard(std::vector<Module*>{first, second}, mesh).status());
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    EXPECT_EQ(parameters.size(), 2u);
    return absl::OkStatus();
  }));
}

TEST(FullyShardTest, MixedDTypesInAUnitAreRefusedByName) {
  EXPECT_THAT(OnMesh([](const auto& mesh) -> absl::Status {
                TestSequence model;
                model.AddUnused("a", {3});
                model.AddUnused("b", {3})->dtype = DType::kBFloat16;
                FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
                return root->parameters().status();
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"b\" is bfloat16 and \"a\" is float32")));
}

TEST(FullyShardTest, UnitsOfOneModelHaveOneMesh) {
  EXPECT_THAT(
      RunRanks(4,
               [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
                 FSDP_ASSIGN_OR_RETURN(const auto row, DeviceMesh::Create(group, {4}, {"shard"}));
                 FSDP_ASSIGN_OR_RETURN(const auto grid, DeviceMesh::Create(group, {2, 2}, {"replicate", "shard"}));
                 TestSequence model;
                 FSDP_RETURN_IF_ERROR(FullyShard(*model.AddLinear(3, 5), row).status());
                 FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, grid));
                 return root->parameters().status();
               }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("module \"0\" is sharded over mesh shard=4, the root over replicate=2 x shard=2")));
}

TEST(FullyShardTest, ForwardWithoutATapeOfTheRootIsAnError) {
  EXPECT_THAT(RunFullyShard(kRanks, {},
                            [](TestFullyShard& test) -> absl::Status {
                              FSDP_ASSIGN_OR_RETURN(const auto stream, test.device().CreateStream("other"));
                              FSDP_ASSIGN_OR_RETURN(const auto ops, LayerOpsFor(test.device()));
                              Tape tape(*stream, *ops);
                              return test.Forward(tape).status();
                            }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("before its root was used")));
  EXPECT_THAT(RunFullyShard(kRanks, {},
                            [](TestFullyShard& test) -> absl::Status {
                              FSDP_RETURN_IF_ERROR(test.root->parameters().status());
                              FSDP_ASSIGN_OR_RETURN(const auto stream, test.device().CreateStream("other"));
                              FSDP_ASSIGN_OR_RETURN(const auto ops, LayerOpsFor(test.device()));
                              Tape tape(*stream, *ops);
                              return test.Forward(tape).status();
                            }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("on a tape of another stream")));
}

TEST(FullyShardTest, EveryRankHoldsItsRowsOfEveryParameter) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    EXPECT_EQ(parameters.size(), 8u);
    for (const ShardedParameter* parameter : parameters) {
      const int64_t rows = parameter->shape.dim(0);
      const int64_t chunk = (rows + kRanks - 1) / kRanks;
      const int64_t begin = std::min(rows, chunk * test.group->rank());
      const int64_t end = std::min(rows, begin + chunk);
      const int64_t row_numel = parameter->shape.numel() / rows;
      EXPECT_EQ(parameter->data.numel(), (end - begin) * row_numel) << parameter->fqn;
      if (begin < end) {
        EXPECT_EQ(parameter->interval, (Interval{begin * row_numel, end * row_numel})) << parameter->fqn;
      }
    }
    return absl::OkStatus();
  }));
}

TEST(FullyShardTest, IgnoredParametersAreLeftAlone) {
  EXPECT_OK(OnMesh([](const auto& mesh) -> absl::Status {
    TestSequence model;
    model.AddLinear(3, 5);
    const std::shared_ptr<Parameter> ignored = model.AddUnused("ignored", {});
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh, {.ignored_params = {ignored}}));
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    EXPECT_EQ(parameters.size(), 2u);
    FSDP_ASSIGN_OR_RETURN(const auto made, ShardedModel::Of(*root));
    EXPECT_EQ(made->units().unmanaged().size(), 1u);
    return absl::OkStatus();
  }));
}

TEST(FullyShardTest, MetaParametersGetTheValuesOfTheirInitializers) {
  ASSERT_OK(RunFullyShard(kRanks, {.init_seed = 3}, [](TestFullyShard& test) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    for (const auto& [name, original] : test.model->NamedParameters()) {
      for (const ShardedParameter* parameter : parameters) {
        if (parameter->fqn != name) continue;
        std::vector<float> wanted(parameter->interval.size());
        original->initializer.Fill(3, name, parameter->interval, wanted.data());
        for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(parameter->data.data_as<float>()[i], wanted[i]);
      }
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
