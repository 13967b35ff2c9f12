// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/name_prefixes.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Names = std::vector<std::string_view>;

// "A|B", the two prefixes, or "none".
std::string Found(const Names& in_a, const Names& in_b) {
  const auto prefixes = FindPrefixes(in_a, in_b);
  return prefixes ? prefixes->a + "|" + prefixes->b : "none";
}

TEST(NamePrefixesTest, AWrapperOfOneSideIsFound) {
  EXPECT_EQ(
      Found({"h.0.weight", "h.0.bias", "ln.weight"}, {"module.h.0.weight", "module.h.0.bias", "module.ln.weight"}),
      "|module.");
  EXPECT_EQ(Found({"_orig_mod.module.w", "_orig_mod.module.b"}, {"w", "b"}), "_orig_mod.module.|");
}

TEST(NamePrefixesTest, DifferentWrappersOfBothSidesAreFound) {
  EXPECT_EQ(Found({"module.h.0.weight", "module.ln.weight"}, {"model.net.h.0.weight", "model.net.ln.weight"}),
            "module.|model.net.");
}

TEST(NamePrefixesTest, NamesBesideTheModelDoNotHideItsPrefix) {
  EXPECT_EQ(Found({"wte.weight", "h.0.weight", "head.weight"},
                  {"transformer.wte.weight", "transformer.h.0.weight", "lm_head.weight", "score.weight"}),
            "|transformer.");
}

TEST(NamePrefixesTest, OtherNamesAreNotMadeEqualByAPrefix) {
  EXPECT_EQ(Found({"q.weight", "k.weight"}, {"attn.in.weight", "attn.out.weight"}), "none");
  EXPECT_EQ(Found({"a", "b", "c", "d", "e"}, {"x.a", "y", "z", "u", "v"}), "none");
  EXPECT_EQ(Found({}, {"a"}), "none");
}

TEST(NamePrefixesTest, ANameOfManyDotsTakesNoTime) {
  std::string dots(60'000, '.');
  EXPECT_EQ(Found({dots, "w"}, {"module.w"}), "|module.");
}

}  // namespace
}  // namespace fsdp
