// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(Utf8Test, EveryCharacterHasItsLength) {
  EXPECT_EQ(Utf8Length("a"), 1);
  EXPECT_EQ(Utf8Length(std::string(1, '\0')), 1);
  EXPECT_EQ(Utf8Length("\xc2\x80..."), 2);
  EXPECT_EQ(Utf8Length("\xe0\xa0\x80"), 3);
  EXPECT_EQ(Utf8Length("\xed\x9f\xbf"), 3);
  EXPECT_EQ(Utf8Length("\xf0\x90\x80\x80"), 4);
  EXPECT_EQ(Utf8Length("\xf4\x8f\xbf\xbf"), 4);
  EXPECT_TRUE(IsUtf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
  EXPECT_TRUE(IsUtf8(""));
}

// Overlong forms, surrogates, code points above U+10FFFF, bytes without a lead and characters that are cut off.
TEST(Utf8Test, AnythingElseHasNone) {
  for (const char* wrong :
       {"", "\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe2\x82", "\xe2\x82z",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(Utf8Length(wrong), 0) << testing::PrintToString(wrong);
    EXPECT_FALSE(IsUtf8(std::string("a") + (*wrong == '\0' ? "\xff" : wrong))) << testing::PrintToString(wrong);
  }
}

}  // namespace
}  // namespace fsdp
