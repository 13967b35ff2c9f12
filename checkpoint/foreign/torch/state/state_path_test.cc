// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/state_path.h"

#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Element = StatePathElement;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::SizeIs;

TEST(StatePathTest, ANameHasTheElementsItWasJoinedFrom) {
  const std::vector<std::vector<Element>> paths = {
      {{"exp_avg", false}},         {{"quant", false}, {"absmax", false}},
      {{"GG", false}, {"0", true}}, {{"GG", false}, {"0", false}},
      {{"a.b/c%2E", false}},        {{"[0]", false}, {"%", false}, {"[", false}, {"%2F", false}},
      {{"10", true}, {"x", false}},
  };
  for (const std::vector<Element>& path : paths) {
    std::string name;
    for (const Element& element : path) name = JoinStatePath(name, element);
    EXPECT_THAT(SplitStatePath(name), ElementsAreArray(path)) << name;
  }
  EXPECT_EQ(JoinStatePath(JoinStatePath("", {"GG", false}), {"1", true}), "GG.[1]");
}

// Names of a checkpoint of ours, which were not joined from anything, go through a torch file unchanged.
TEST(StatePathTest, ANameThatWasNotJoinedComesBack) {
  for (const std::string name : {"exp/avg", "50%", "a%2Fb", "a%2Eb", "a.b", "[1]", "x.[0].y", "%5B"}) {
    std::string joined;
    for (const Element& element : SplitStatePath(name)) joined = JoinStatePath(joined, element);
    EXPECT_EQ(joined, name);
  }
}

TEST(StatePathTest, ANameOfTooManyElementsIsOne) {
  std::string name = "a";
  for (int i = 0; i < 1000; ++i) name += ".a";
  EXPECT_THAT(SplitStatePath(name), ElementsAre(Element{name, false}));
  EXPECT_THAT(SplitStatePath(name.substr(0, 2 * kMaxStatePath - 1)), SizeIs(kMaxStatePath));
}

}  // namespace
}  // namespace fsdp
