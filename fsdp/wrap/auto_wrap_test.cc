// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/wrap/auto_wrap.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> Names(const std::vector<WrappedModule>& wrapped) {
  std::vector<std::string> names;
  for (const WrappedModule& one : wrapped) names.push_back(one.name);
  return names;
}

// Two layers, the first normalised.
std::unique_ptr<TestSequence> Normalised() {
  auto root = std::make_unique<TestSequence>();
  TestSequence* block = root->AddSequence("Block");
  block->AddLinear(3, 5);
  block->AddSequence("BatchNorm1d")->AddLinear(5, 5);
  root->AddSequence("Block")->AddLinear(5, 7);
  return root;
}

TEST(AutoWrapTest, CustomPolicyGivesAUnitOptionsOfItsOwn) {
  const std::unique_ptr<TestSequence> root = Normalised();
  const FsdpOptions options{.auto_wrap_policy = CustomWrapPolicy([](Module& module) -> std::optional<UnitOverrides> {
                              if (module.type_name() == "Conv1D")
                                return UnitOverrides{.sharding_strategy = ShardingStrategy::kShardGradOp};
                              if (module.type_name() == "Block") return UnitOverrides();
                              return std::nullopt;
                            })};
  ASSERT_OK_AND_ASSIGN(const std::vector<WrappedModule> wrapped, AutoWrap(*root, options, {}));
  EXPECT_THAT(Names(wrapped), ElementsAre("0", "0.0", "0.1.0", "1", "1.0"));
  for (const WrappedModule& one : wrapped) {
    EXPECT_EQ(one.overrides.sharding_strategy.has_value(), one.module->type_name() == "Conv1D") << one.name;
  }
}

TEST(AutoWrapTest, MixedPrecisionWrapsIgnoredClassesInFullPrecisionUnderEitherKindOfPolicy) {
  const std::unique_ptr<TestSequence> root = Normalised();
  const MixedPrecision low{.param_dtype = DType::kBFloat16};
  for (const WrapPolicy& policy :
       {WrapPolicy(LambdaWrapPolicy(HasTypeName({"Block"}))), WrapPolicy(SizeBasedWrapPolicy(1'000)),
        WrapPolicy(ModuleWrapPolicy<TestSequence>())}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<WrappedModule> wrapped,
                         AutoWrap(*root, {.mixed_precision = low, .auto_wrap_policy = policy}, {}));
    int norms = 0;
    for (const WrappedModule& one : wrapped) {
      const bool norm = one.module->type_name() == "BatchNorm1d";
      norms += norm;
      EXPECT_EQ(one.overrides.keep_full_precision, norm) << one.name;
      EXPECT_EQ(one.overrides.mixed_precision.has_value(), norm) << one.name;
    }
    EXPECT_EQ(norms, 1);
  }
}

TEST(AutoWrapTest, WithoutMixedPrecisionOrPolicyIgnoredClassesAreNothingSpecial) {
  const std::unique_ptr<TestSequence> root = Normalised();
  EXPECT_THAT(Names(*AutoWrap(*root, {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))}, {})),
              ElementsAre("0", "1"));
  EXPECT_THAT(Names(*AutoWrap(*root, {.mixed_precision = {.param_dtype = DType::kBFloat16}}, {})), IsEmpty());
}

TEST(AutoWrapTest, TheClassesThatMixedPrecisionIgnoresCanBeChosen) {
  const std::unique_ptr<TestSequence> root = Normalised();
  const FsdpOptions options{
      .mixed_precision = {.param_dtype = DType::kBFloat16, .module_classes_to_ignore = HasTypeName({"Block"})},
      .auto_wrap_policy = SizeBasedWrapPolicy(1'000)};
  EXPECT_THAT(Names(*AutoWrap(*root, options, {})), ElementsAre("0", "1"));
}

TEST(AutoWrapTest, NamesMayBePatterns) {
  const std::unique_ptr<TestSequence> root = Normalised();
  EXPECT_THAT(Names(*AutoWrap(*root, {.auto_wrap_policy = NameWrapPolicy({"0.*"})}, {})),
              testing::Each(testing::StartsWith("0.")));
  EXPECT_THAT(Names(*AutoWrap(*root, {.auto_wrap_policy = NameWrapPolicy({"*", "0.0"})}, {})),
              ElementsAre("0", "0.0", "1"));
}

TEST(AutoWrapTest, APatternThatNoModuleMatchesIsAnError) {
  EXPECT_THAT(AutoWrap(*Normalised(), {.auto_wrap_policy = NameWrapPolicy({"transformer.h.*"})}, {}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no module's name matches \"transformer.h.*\"")));
}

class NoHooks final : public ModuleHooks {
  absl::Status PreForward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PostForward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PreBackward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PostBackward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
};

TEST(AutoWrapTest, ADescendantThatIsShardedAlreadyIsRefusedByName) {
  const std::unique_ptr<TestSequence> root = Normalised();
  NoHooks hooks;
  root->NamedModules()[2].second->set_hooks(&hooks);
  EXPECT_THAT(AutoWrap(*root, {.auto_wrap_policy = AlwaysWrapPolicy()}, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("module \"0.0\" has been sharded already"), HasSubstr("not both"))));
  EXPECT_OK(AutoWrap(*root, {}, {}).status());
}

}  // namespace
}  // namespace fsdp
