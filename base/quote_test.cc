// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/quote.h"

#include <string>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(QuoteTest, NamesArePutBetweenQuotes) {
  EXPECT_EQ(Quote("transformer.wte.weight"), "\"transformer.wte.weight\"");
  EXPECT_EQ(Quote("\xC3\xBC\xE4\xB8\x96"), "\"\xC3\xBC\xE4\xB8\x96\"");
}

TEST(QuoteTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Quote(std::string("\x1b[31m\n\"\0", 8)), "\"\\033[31m\\n\\\"\\000\"");
}

TEST(QuoteTest, WhatIsNoUtf8IsEscaped) {
  EXPECT_EQ(Printable("a\xFF\xC3"), "a\\377\\303");         // never a byte of UTF-8; cut off
  EXPECT_EQ(Printable("\xC0\x80"), "\\300\\200");           // longer than need be
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\\355\\240\\200");  // half of a surrogate pair
  EXPECT_EQ(Printable("\xC2\x9Bm"), "\\u009bm");            // CSI, which some terminals obey
  EXPECT_EQ(Printable("\xF0\x9F\x98\x80\xC2\xA0"), "\xF0\x9F\x98\x80\xC2\xA0");
}

TEST(QuoteTest, ANameHidesNothing) {
  EXPECT_EQ(Quote("gpt2\xE2\x80\xAEtp.x"), "\"gpt2\\u202etp.x\"");  // the rest would be read from right to left
  EXPECT_EQ(Quote("w\xE2\x80\x8B"), "\"w\\u200b\"");                // no width
  EXPECT_EQ(Quote("\\u202e"), "\"\\\\u202e\"");                     // the name of these letters
}

TEST(QuoteTest, LongNamesAreCutBetweenCharacters) {
  EXPECT_EQ(Printable(std::string(256, 'a')), std::string(256, 'a'));
  EXPECT_EQ(Printable(std::string(257, 'a')), std::string(96, 'a') + "..." + std::string(96, 'a'));
  std::string wide;
  for (int i = 0; i < 200; ++i) wide += "\xE4\xB8\x96";
  wide.insert(0, "a");  // so that 96 bytes end inside a character
  const std::string cut = Printable(wide);
  EXPECT_EQ(cut.substr(0, 98), wide.substr(0, 94) + "...\xE4");
  EXPECT_EQ(cut.substr(97), wide.substr(wide.size() - 96));
}

TEST(QuoteTest, ACutLeavesNoPartOfASecret) {
  const std::string url = "https://host/m.pt?X-Amz-Security-Token=";
  EXPECT_EQ(Printable(url + std::string(300, 's')), url + "***");
  const std::string parameters = std::string(300, 'p');
  EXPECT_EQ(Printable(url + std::string(300, 's') + "&a=" + parameters),
            (url + "***&a=" + parameters).substr(0, 96) + "..." + std::string(96, 'p'));
}

}  // namespace
}  // namespace fsdp
