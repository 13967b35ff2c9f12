// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/curves/run_names.h"

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

TEST(RunNamesTest, ARunIsCalledByItsDirectory) {
  EXPECT_THAT(RunNames({"/home/me/gpt2/metrics.jsonl"}), ElementsAre("gpt2"));
  EXPECT_THAT(RunNames({"/home/me/gpt2/loss.jsonl"}), ElementsAre("loss.jsonl"));
  EXPECT_THAT(RunNames({"/metrics.jsonl"}), ElementsAre("metrics.jsonl"));
}

TEST(RunNamesTest, SeveralAreCalledByWhatTellsThemApart) {
  EXPECT_THAT(RunNames({"/r/lr-1e-3/metrics.jsonl", "/r/lr-3e-4/metrics.jsonl"}), ElementsAre("lr-1e-3", "lr-3e-4"));
  EXPECT_THAT(RunNames({"/r/a/1.jsonl", "/r/a/2.jsonl"}), ElementsAre("1.jsonl", "2.jsonl"));
  EXPECT_THAT(RunNames({"/r/a/x/m.jsonl", "/r/b/x/m.jsonl"}), ElementsAre("a/x", "b/x"));
  EXPECT_THAT(RunNames({"/r/a/m.jsonl", "/r/m.jsonl"}), ElementsAre("r/a", "r"));
}

TEST(RunNamesTest, NoTwoNamesAreEqual) {
  EXPECT_THAT(RunNames({"/r/a/m.jsonl", "/r/a/m.jsonl", "/r/a/m.jsonl"}), ElementsAre("a", "a (2)", "a (3)"));
  EXPECT_THAT(RunNames({"", "/"}), ElementsAre("", "/"));
}

}  // namespace
}  // namespace fsdp
