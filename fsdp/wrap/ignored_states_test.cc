// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/wrap/ignored_states.h"

#include <memory>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class IgnoredStatesTest : public testing::Test {
 protected:
  IgnoredStatesTest() {
    outer_ = root_.AddSequence();
    inner_ = outer_->AddLinear(3, 5);
    other_ = root_.AddLinear(5, 7);
    root_.AssignNames();
  }

  TestSequence root_;
  TestSequence* outer_;
  Conv1D* inner_;
  Conv1D* other_;
};

TEST_F(IgnoredStatesTest, AnIgnoredModuleIgnoresAllBelowIt) {
  FsdpOptions options;
  options.ignored_modules = {outer_};
  ASSERT_OK_AND_ASSIGN(const IgnoredStates ignored, ResolveIgnoredStates(root_, options));
  EXPECT_TRUE(ignored.contains(*outer_));
  EXPECT_TRUE(ignored.contains(*inner_));
  EXPECT_FALSE(ignored.contains(*other_));
  EXPECT_FALSE(ignored.contains(root_));
  EXPECT_EQ(ignored.parameters.size(), 2u);
  EXPECT_EQ(ManagedNumel(root_, ignored), 5 * 7 + 7);
}

TEST_F(IgnoredStatesTest, StatesAreModulesOrParameters) {
  FsdpOptions options;
  options.ignored_states = std::vector<Module*>{inner_};
  ASSERT_OK_AND_ASSIGN(const IgnoredStates modules, ResolveIgnoredStates(root_, options));
  EXPECT_EQ(modules.parameters.size(), 2u);
  const std::shared_ptr<Parameter> weight = inner_->own_parameters()[0].second;
  options.ignored_states = std::vector<std::shared_ptr<Parameter>>{weight};
  ASSERT_OK_AND_ASSIGN(const IgnoredStates parameters, ResolveIgnoredStates(root_, options));
  EXPECT_TRUE(parameters.contains(*weight));
  EXPECT_TRUE(parameters.modules.empty());
  EXPECT_EQ(ManagedNumel(root_, parameters), 5 + 5 * 7 + 7);
}

TEST_F(IgnoredStatesTest, BothArgumentsAtOnceAreRefused) {
  FsdpOptions options;
  options.ignored_modules = {inner_};
  options.ignored_states = std::vector<Module*>{other_};
  EXPECT_THAT(ResolveIgnoredStates(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ignored_modules and ignored_states are both given: expected one of them")));
}

class NoHooks final : public ModuleHooks {
  absl::Status PreForward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PostForward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PreBackward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PostBackward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
};

TEST_F(IgnoredStatesTest, AModuleThatIsShardedOnItsOwnCannotBeIgnored) {
  NoHooks hooks;
  inner_->set_hooks(&hooks);
  FsdpOptions options;
  options.ignored_modules = {inner_};
  EXPECT_THAT(ResolveIgnoredStates(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ignored_modules[0], module \"0.0\", is sharded on its own")));
}

TEST_F(IgnoredStatesTest, ParametersOutsideTheRootAreRefused) {
  TestSequence stranger;
  FsdpOptions options;
  options.ignored_modules = {inner_, &stranger};
  EXPECT_THAT(ResolveIgnoredStates(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ignored_modules[1] is no module")));
  options.ignored_modules = {nullptr};
  EXPECT_THAT(ResolveIgnoredStates(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ignored_modules[0] is null")));
  options.ignored_modules = {};
  options.ignored_states = std::vector<std::shared_ptr<Parameter>>{stranger.AddUnused("w", {3})};
  EXPECT_THAT(ResolveIgnoredStates(root_, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ignored_states[0] is \"w\"")));
}

}  // namespace
}  // namespace fsdp
