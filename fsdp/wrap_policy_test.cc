// SPDX-License-Identifier: Apache-2.0
#include "fsdp/wrap_policy.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/gpt2.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Blocks of 28,272 elements, wte 12,336 (tied to the head), wpe 3,072: the sizes of the golden gpt2_tiny.
Gpt2Config TinyConfig() {
  Gpt2Config config;
  config.vocab_size = 257;
  config.n_positions = 64;
  config.n_embd = 48;
  config.n_layer = 3;
  config.n_head = 4;
  return config;
}

std::vector<std::string> Selected(const WrapPolicy& policy) {
  std::unique_ptr<Module> model = *MakeGpt2(TinyConfig());
  std::vector<std::string> names;
  for (const WrapPolicy::Selected& selected : policy.Apply(*model)) names.push_back(selected.name);
  return names;
}

TEST(WrapPolicyTest, DefaultWrapsNothing) { EXPECT_THAT(Selected(WrapPolicy()), IsEmpty()); }

TEST(WrapPolicyTest, ModuleWrapPolicyPicksAClass) {
  EXPECT_THAT(Selected(ModuleWrapPolicy<Gpt2Block>()),
              ElementsAre("transformer.h.0", "transformer.h.1", "transformer.h.2"));
}

TEST(WrapPolicyTest, LambdaSeesEveryModuleButTheRoot) {
  EXPECT_THAT(Selected(LambdaWrapPolicy([](Module& m) { return !m.children().empty() && m.type_name() == "GPT2MLP"; })),
              ElementsAre("transformer.h.0.mlp", "transformer.h.1.mlp", "transformer.h.2.mlp"));
}

TEST(WrapPolicyTest, SizeBasedWrapsFromInsideOut) {
  EXPECT_THAT(Selected(SizeBasedWrapPolicy(20'000)),
              ElementsAre("transformer.h.0", "transformer.h.1", "transformer.h.2"));
  // The MLP is large enough alone; what it leaves of its block is not.
  EXPECT_THAT(Selected(SizeBasedWrapPolicy(18'000)),
              ElementsAre("transformer.h.0.mlp", "transformer.h.1.mlp", "transformer.h.2.mlp"));
}

TEST(WrapPolicyTest, SizeBasedNeverSplitsASharedParameterFromItsOtherName) {
  for (const std::string& name : Selected(SizeBasedWrapPolicy(12'000))) {
    EXPECT_NE(name, "transformer.wte");
    EXPECT_NE(name, "lm_head");
    EXPECT_NE(name, "transformer");
  }
}

TEST(WrapPolicyTest, SizeBasedAboveTheModelWrapsNothing) { EXPECT_THAT(Selected(SizeBasedWrapPolicy()), IsEmpty()); }

}  // namespace
}  // namespace fsdp
