// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/wrap_text.h"

#include <string>

#include "fsdp/base/environment_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(WrapTextTest, ShortLinesStay) { EXPECT_EQ(WrapText("a  b\n\n  c\n", 20), "a  b\n\n  c\n"); }

TEST(WrapTextTest, LongLinesAreDividedAtBlanksUnderTheirBeginning) {
  EXPECT_EQ(WrapText("  one two three four five", 20), "  one two three four\n  five");
}

TEST(WrapTextTest, FlagsAndUsageHang) {
  EXPECT_EQ(WrapText("  --flag=VALUE: a text of words", 20), "  --flag=VALUE: a\n      text of words");
  EXPECT_EQ(WrapText("usage: program --flag A B", 20), "usage: program\n    --flag A B");
}

TEST(WrapTextTest, EachFormOfTheUsageHangs) {
  EXPECT_EQ(WrapText("usage: p --flag A B C\np --other X Y and Z\n\np is a program of words", 20),
            "usage: p --flag A B\n    C\np --other X Y and Z\n\np is a program of\nwords");
  EXPECT_EQ(WrapText("usage: p A\np --another X Y and Z\nDoes all of what p does", 20),
            "usage: p A\np --another X Y and\n    Z\nDoes all of what p\ndoes");
}

TEST(WrapTextTest, AWordLongerThanALineStaysWhole) {
  const std::string word(30, 'x');
  EXPECT_EQ(WrapText("a " + word + " b", 20), "a\n" + word + "\nb");
}

TEST(HelpColumnsTest, AreThoseOfTheEnvironment) {
  ScopedVariable variable("COLUMNS", "50");
  EXPECT_EQ(HelpColumns(), 50);
  for (const char* nothing : {"", "0", "-3", "many"}) {
    variable.Set(nothing);
    EXPECT_EQ(HelpColumns(), 80) << nothing;
  }
}

}  // namespace
}  // namespace fsdp
