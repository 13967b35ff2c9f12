// SPDX-License-Identifier: Apache-2.0
//
// The expected results are from Python's re.match(r"(.*\.)?(PATTERN)$", NAME).
#include "fsdp/checkpoint/foreign/peft/name_pattern.h"

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/base/steady_clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

bool Matches(const std::string& pattern, const std::string& name) {
  const absl::StatusOr<NamePattern> compiled = NamePattern::Create(pattern);
  EXPECT_OK(compiled.status());
  return compiled.ok() && compiled->MatchesEndOf(name);
}

TEST(NamePatternTest, APlainNameMatchesWholeComponentsAtTheEnd) {
  EXPECT_TRUE(Matches("q_proj", "q_proj"));
  EXPECT_TRUE(Matches("q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(Matches("self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(Matches("q_proj", "model.layers.0.self_attn.my_q_proj"));
  EXPECT_FALSE(Matches("q_proj", "model.q_proj.inner"));
  EXPECT_FALSE(Matches("self_attn.q_proj", "q_proj"));
  EXPECT_TRUE(Matches("a.b", "x.a_b"));  // a dot of a regular expression is any character
  EXPECT_FALSE(Matches("", "a"));
  EXPECT_TRUE(Matches("", "a."));
}

TEST(NamePatternTest, RegularExpressionsMatchAsInPython) {
  EXPECT_TRUE(Matches(R"(layers\.\d+\.q_proj)", "model.layers.12.q_proj"));
  EXPECT_FALSE(Matches(R"(layers\.\d+\.q_proj)", "model.layers.x.q_proj"));
  EXPECT_TRUE(Matches(R"(model\.layers\.(0|1[0-9])\..*proj)", "model.layers.17.mlp.up_proj"));
  EXPECT_FALSE(Matches(R"(model\.layers\.(0|1[0-9])\..*proj)", "model.layers.27.mlp.up_proj"));
  EXPECT_TRUE(Matches("^model.embed", "model.embed"));
  EXPECT_FALSE(Matches("^model.embed", "base.model.embed"));
  EXPECT_TRUE(Matches("(?:q|v)_proj$", "x.v_proj"));
  EXPECT_FALSE(Matches("(?:q|v)_proj$", "x.k_proj"));
  EXPECT_TRUE(Matches("[^q]_proj", "x.k_proj"));
  EXPECT_FALSE(Matches("[^q]_proj", "x.q_proj"));
  EXPECT_TRUE(Matches("[]a-c-]+", "x.]a-b"));
  EXPECT_TRUE(Matches("a?b+c*?", "x.bb"));
  EXPECT_TRUE(Matches("(ab)*", "x.abab"));
  EXPECT_FALSE(Matches("(ab)+", "x.aba"));
  EXPECT_TRUE(Matches("(a|)b", "x.b"));
  EXPECT_TRUE(Matches(R"(\w+\-\S)", "x.ab_1-."));
  EXPECT_TRUE(Matches(".*", "anything.at.all"));
}

TEST(NamePatternTest, WhatIsNotSupportedIsNamed) {
  const auto refuses = [](const std::string& pattern, const std::string& what) {
    EXPECT_THAT(NamePattern::Create(pattern),
                StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("regular expression"), HasSubstr(what))))
        << pattern;
  };
  refuses("(?=a)b", "\"(?=\"");
  refuses(R"((a)\1)", R"("\1")");
  refuses("a{2}", "\"{\"");
  refuses("(a", "without its partner");
  refuses("a)", "without its partner");
  refuses("[a", "without its partner");
  refuses("*a", "after nothing");
  refuses("a**", "a repetition of a repetition");
  refuses("[b-a]", "a range of that kind");
  refuses("a\\", R"("\")");
  refuses(std::string(100, '(') + std::string(100, ')'), "nested deeper than 32");
  refuses(std::string(1025, '+'), "1025 bytes");
}

// std::regex would take years.
TEST(NamePatternTest, AHostilePatternTakesNoTime) {
  std::string pattern = "b";
  for (int i = 0; i < 30; ++i) pattern = "(" + pattern + ")*";
  pattern = "(a*)*" + pattern + "c";
  const absl::Time start = SteadyNow();
  EXPECT_FALSE(Matches(pattern, std::string(1000, 'a')));
  EXPECT_LT(SteadyNow() - start, absl::Seconds(5));
}

}  // namespace
}  // namespace fsdp
