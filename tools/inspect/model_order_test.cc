// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/model_order.h"

#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

TEST(ModelOrderTest, AModelIsOrderedAsDataPassesThroughIt) {
  EXPECT_THAT(InModelOrder({"lm_head", "transformer.h.0", "transformer.h.10", "transformer.h.2", "transformer.ln_f",
                            "transformer.wpe", "transformer.wte"}),
              ElementsAre("transformer.wpe", "transformer.wte", "transformer.h.0", "transformer.h.2",
                          "transformer.h.10", "transformer.ln_f", "lm_head"));
  EXPECT_THAT(InModelOrder({"norm", "output", "layers.1", "tok_embeddings", "layers.0"}),
              ElementsAre("tok_embeddings", "layers.0", "layers.1", "norm", "output"));
}

// With the place of a component by its own name only, each of these would come before the next, in a circle.
TEST(ModelOrderTest, TheOrderDoesNotDependOnTheOrderOfTheNames) {
  const std::vector<std::string> ordered = {"h.emb", "h.0", "b"};
  EXPECT_EQ(InModelOrder({"h.0", "b", "h.emb"}), ordered);
  EXPECT_EQ(InModelOrder({"b", "h.emb", "h.0"}), ordered);
  EXPECT_EQ(InModelOrder({"h.emb", "h.0", "b"}), ordered);
}

}  // namespace
}  // namespace fsdp
