// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/options/wrap_policy.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/wrap/auto_wrap.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/module_list.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Selected(Module& root, const WrapPolicy& policy, const IgnoredStates& ignored = {}) {
  std::vector<std::string> names;
  const FsdpOptions options{.auto_wrap_policy = policy};
  const absl::StatusOr<std::vector<WrappedModule>> wrapped = AutoWrap(root, options, ignored);
  EXPECT_OK(wrapped.status());
  for (const WrappedModule& one : *wrapped) names.push_back(one.name);
  return names;
}

// Blocks of 28,272 elements, wte 12,336 (tied to the head), wpe 3,072: the sizes of the golden gpt2_tiny.
std::vector<std::string> SelectedOfGpt2(const WrapPolicy& policy) {
  Gpt2Config config;
  config.vocab_size = 257;
  config.n_positions = 64;
  config.n_embd = 48;
  config.n_layer = 3;
  config.n_head = 4;
  return Selected(**MakeGpt2(config), policy);
}

TEST(WrapPolicyTest, DefaultWrapsNothing) { EXPECT_THAT(SelectedOfGpt2(WrapPolicy()), IsEmpty()); }

TEST(WrapPolicyTest, ModuleWrapPolicyPicksAClass) {
  EXPECT_THAT(SelectedOfGpt2(ModuleWrapPolicy<Gpt2Block>()),
              ElementsAre("transformer.h.0", "transformer.h.1", "transformer.h.2"));
}

TEST(WrapPolicyTest, ModuleWrapPolicyPicksSeveralClassesNestedInOneAnother) {
  EXPECT_THAT(SelectedOfGpt2(ModuleWrapPolicy<Gpt2Block, Gpt2Mlp>()),
              ElementsAre("transformer.h.0", "transformer.h.0.mlp", "transformer.h.1", "transformer.h.1.mlp",
                          "transformer.h.2", "transformer.h.2.mlp"));
}

TEST(WrapPolicyTest, TransformerWrapPolicyPicksBlocksAsAFunction) {
  EXPECT_THAT(SelectedOfGpt2(TransformerWrapPolicy<Gpt2Block>()),
              ElementsAre("transformer.h.0", "transformer.h.1", "transformer.h.2"));
}

TEST(WrapPolicyTest, LambdaSeesEveryModuleButTheRoot) {
  EXPECT_THAT(SelectedOfGpt2(LambdaWrapPolicy([](Module& m) { return m.type_name() == "GPT2MLP"; })),
              ElementsAre("transformer.h.0.mlp", "transformer.h.1.mlp", "transformer.h.2.mlp"));
  EXPECT_THAT(SelectedOfGpt2(LambdaWrapPolicy([](Module& m) { return m.type_name() == "GPT2LMHeadModel"; })),
              IsEmpty());
}

TEST(WrapPolicyTest, AlwaysWrapsEverythingBelowTheRoot) {
  TestSequence root;
  root.AddSequence()->AddLinear(3, 5);
  root.AddLinear(5, 7);
  EXPECT_THAT(Selected(root, AlwaysWrapPolicy()), ElementsAre("0", "0.0", "1"));
}

TEST(WrapPolicyTest, OrSaysYesWhereAnyDoes) {
  EXPECT_THAT(SelectedOfGpt2(OrWrapPolicy({LambdaWrapPolicy([](Module& m) { return m.type_name() == "GPT2Attention"; }),
                                           SizeBasedWrapPolicy(18'000)})),
              ElementsAre("transformer.h.0.attn", "transformer.h.0.mlp", "transformer.h.1.attn", "transformer.h.1.mlp",
                          "transformer.h.2.attn", "transformer.h.2.mlp"));
}

TEST(WrapPolicyTest, SizeBasedWrapsFromInsideOut) {
  EXPECT_THAT(SelectedOfGpt2(SizeBasedWrapPolicy(20'000)),
              ElementsAre("transformer.h.0", "transformer.h.1", "transformer.h.2"));
  // The MLP is large enough by itself; the rest of its block is not.
  EXPECT_THAT(SelectedOfGpt2(SizeBasedWrapPolicy(18'000)),
              ElementsAre("transformer.h.0.mlp", "transformer.h.1.mlp", "transformer.h.2.mlp"));
}

TEST(WrapPolicyTest, SizeBasedComparesWithAtLeast) {
  TestSequence root;
  root.AddLinear(3, 5);  // 20 elements
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(20)), ElementsAre("0"));
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(21)), IsEmpty());
}

TEST(WrapPolicyTest, SizeBasedLeavesForcedLeavesToTheUnitAround) {
  TestSequence root;
  TestSequence* attention = root.AddSequence("MultiheadAttention");
  attention->AddLinear(3, 5);
  root.AddSequence()->AddLinear(3, 5);
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(20)), ElementsAre("1.0"));
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(20, {.force_leaf_modules = IsAnyOf<Conv1D>()})),
              ElementsAre("0", "1"));
}

TEST(WrapPolicyTest, SizeBasedWrapsWhatIsInContainersButNoContainer) {
  TestSequence root;
  ModuleList* list = root.Add(std::make_unique<ModuleList>());
  list->Append(std::make_unique<Conv1D>(3, 5, Initializer::Constant(1)));
  list->Append(std::make_unique<Conv1D>(2, 5, Initializer::Constant(1)));
  list->Append(std::make_unique<Conv1D>(1, 5, Initializer::Constant(1)));
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(20)), ElementsAre("0.0"));
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(20, {.exclude_wrap_modules = HasTypeName({"Conv1D"})})),
              ElementsAre("0"));
}

TEST(WrapPolicyTest, SizeBasedNeverSplitsASharedParameterFromItsOtherName) {
  for (const std::string& name : SelectedOfGpt2(SizeBasedWrapPolicy(12'000))) {
    EXPECT_NE(name, "transformer.wte");
    EXPECT_NE(name, "lm_head");
    EXPECT_NE(name, "transformer");
  }
}

TEST(WrapPolicyTest, SizeBasedAboveTheModelWrapsNothing) {
  EXPECT_THAT(SelectedOfGpt2(SizeBasedWrapPolicy()), IsEmpty());
}

TEST(WrapPolicyTest, IgnoredChildrenAreNotAskedAndDoNotCount) {
  TestSequence root;
  TestSequence* outer = root.AddSequence();
  Conv1D* ignored_child = outer->AddLinear(3, 5);  // 20 elements
  outer->AddLinear(2, 5);                          // 15
  FsdpOptions options;
  options.ignored_modules = {ignored_child};
  const IgnoredStates ignored = *ResolveIgnoredStates(root, options);
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(30)), ElementsAre("0"));
  EXPECT_THAT(Selected(root, SizeBasedWrapPolicy(30), ignored), IsEmpty());
  EXPECT_THAT(Selected(root, AlwaysWrapPolicy(), ignored), ElementsAre("0", "0.1"));
  EXPECT_THAT(Selected(root, ModuleWrapPolicy<Conv1D>(), ignored), ElementsAre("0.1"));
}

TEST(WrapPolicyTest, ACallableThatDoesNotRecurseLeavesTheSubtree) {
  TestSequence root;
  root.AddSequence("Closed")->AddLinear(3, 5);
  root.AddSequence("Open")->AddLinear(3, 5);
  const WrapFunction policy = [](const WrapCandidate& question) {
    return !question.recurse || question.module.type_name() != "Closed";
  };
  EXPECT_THAT(Selected(root, policy), ElementsAre("1", "1.0"));
}

}  // namespace
}  // namespace fsdp
