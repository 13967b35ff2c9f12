// SPDX-License-Identifier: Apache-2.0
//
// Unshard of a module below the root as the first use of a model.
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kUnits = 3;

class UnshardBeforeRootTest : public testing::TestWithParam<bool> {
 protected:
  static absl::Status Unshard(FsdpModule& module) {
    if (!GetParam()) return module.Unshard();
    FSDP_ASSIGN_OR_RETURN(UnshardHandle handle, module.UnshardAsync());
    return handle.Wait();
  }
};

TEST_P(UnshardBeforeRootTest, GathersOnlyThatUnitAndTheOutermostModuleIsTheRoot) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FsdpModule& block = *test.blocks[1];
    FSDP_RETURN_IF_ERROR(Unshard(block));
    EXPECT_EQ(test.Count("all_gather"), 1);
    EXPECT_TRUE(test.root->is_root());
    EXPECT_FALSE(block.is_root());
    for (const auto& [name, parameter] : test.model->NamedParameters()) {
      EXPECT_EQ(parameter->data.defined(), name.rfind("1.", 0) == 0) << name;
    }
    // The forward does not gather it again.
    FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
    FSDP_RETURN_IF_ERROR(test.Forward(tape).status());
    EXPECT_EQ(test.Count("all_gather"), kUnits);
    return tape.stream().Synchronize();
  }));
}

TEST_P(UnshardBeforeRootTest, ChangesNoGradient) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, StepWith(group, {}, nullptr));
    for (const int block : {0, 1}) {
      FSDP_ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, [block](TestFullyShard& test) {
                              return Unshard(*test.blocks[block]);
                            }));
      EXPECT_EQ(got, wanted);
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Async, UnshardBeforeRootTest, testing::Bool());

TEST(UnshardBeforeRootErrorTest, AUnitOfSeveralModulesNeedsARootAroundIt) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    TestSequence model;
    Module* first = model.AddLinear(3, 5);
    Module* second = model.AddLinear(5, 7);
    FSDP_ASSIGN_OR_RETURN(FsdpModule * both, FullyShard(std::vector<Module*>{first, second}, mesh));
    EXPECT_THAT(both->Unshard(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a unit of 2 modules cannot be the root")));
    FSDP_RETURN_IF_ERROR(FullyShard(model, mesh).status());
    EXPECT_OK(both->Unshard());
    EXPECT_TRUE(first->own_parameters()[0].second->data.defined());
    EXPECT_TRUE(second->own_parameters()[0].second->data.defined());
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp
