// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/suggestion.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

const std::vector<std::string>& Names() {
  static const auto* names = new std::vector<std::string>{"inspect", "verify", "convert", "keep_last", "json", "to"};
  return *names;
}

TEST(DidYouMeanTest, NamesTheNearest) {
  EXPECT_EQ(DidYouMean("inspct", Names()), " (did you mean inspect?)");
  EXPECT_EQ(DidYouMean("jsn", Names(), "--"), " (did you mean --json?)");
  EXPECT_EQ(DidYouMean("keeplast", Names(), "--"), " (did you mean --keep_last?)");
}

TEST(DidYouMeanTest, TwoLettersThatChangedPlacesAreOneMistake) {
  EXPECT_EQ(DidYouMean("jsno", Names()), " (did you mean json?)");
}

TEST(DidYouMeanTest, TheOnlyNameWithThatBeginningIsMeant) {
  EXPECT_EQ(DidYouMean("conv", Names()), " (did you mean convert?)");
}

TEST(DidYouMeanTest, TheNameWithWhichItBeginsIsMeant) {
  EXPECT_EQ(DidYouMean("keep_last_steps", Names(), "--"), " (did you mean --keep_last?)");
  EXPECT_EQ(DidYouMean("jsonlines", Names(), "--"), "");
}

TEST(DidYouMeanTest, NothingIsSuggestedForAnotherWord) {
  EXPECT_EQ(DidYouMean("colour", Names()), "");
  EXPECT_EQ(DidYouMean("x", Names()), "");
  EXPECT_EQ(DidYouMean("", Names()), "");
  EXPECT_EQ(DidYouMean(std::string(1 << 20, 'x'), Names()), "");
}

}  // namespace
}  // namespace fsdp
