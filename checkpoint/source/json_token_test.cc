// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/json_token.h"

#include <string>
#include <string_view>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;

TEST(JsonTokenTest, AStringIsReadInPlace) {
  constexpr std::string_view kText = R"([ "a\"b\\" , 1])";
  ASSERT_OK_AND_ASSIGN(const std::string_view token, ScanJsonString(kText, 2));
  EXPECT_EQ(token, R"("a\"b\\")");
  EXPECT_EQ(token.data(), kText.data() + 2);
  EXPECT_EQ(UnescapeJsonString(token), "a\"b\\");
}

TEST(JsonTokenTest, EveryEscapeSpellsItsCharacter) {
  EXPECT_EQ(UnescapeJsonString(R"("\"\\\/\b\f\n\r\t")"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(UnescapeJsonString(R"("\u0000x\u0041\u00e9\u20AC\ud83d\uDE00.")"),
            std::string("\0xA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80.", 13));
}

TEST(JsonTokenTest, AnInvalidStringIsRefusedAtItsByte) {
  const struct {
    std::string_view text, message;
  } kCases[] = {
      {"\"", "not JSON at byte 2: invalid string: the text ends in it"},
      {"\"ab\\\"", "not JSON at byte 6: invalid string: the text ends in it"},
      {"\"ab\\", "not JSON at byte 4: invalid string: JSON has no such escape"},
      {"\"a\nb\"", "not JSON at byte 3: invalid string: it holds a control character"},
      {R"("a\x41")", "not JSON at byte 3: invalid string: JSON has no such escape"},
      {R"("\u12g4")", "not JSON at byte 2: invalid string: JSON has no such escape"},
      {R"("\u123")", "not JSON at byte 2: invalid string: JSON has no such escape"},
      {R"("\ud800")", "not JSON at byte 2: invalid string: a surrogate without its pair"},
      {R"("\ud800\u0041")", "not JSON at byte 2: invalid string: a surrogate without its pair"},
      {R"("\ud800\ud800")", "not JSON at byte 2: invalid string: a surrogate without its pair"},
      {R"("\udc00\ud800")", "not JSON at byte 2: invalid string: a surrogate without its pair"},
      {"\"\xff\"", "not JSON at byte 2: invalid string: it is not UTF-8"},
      {"\"a\xc3\"", "not JSON at byte 3: invalid string: it is not UTF-8"},
      {"\"\xed\xa0\x80\"", "not JSON at byte 2: invalid string: it is not UTF-8"},
  };
  for (const auto& bad : kCases) {
    EXPECT_THAT(ScanJsonString(bad.text, 0), StatusIs(StatusCode::kDataLoss, std::string(bad.message))) << bad.text;
  }
}

TEST(JsonTokenTest, PlainTextIsAStringBetweenQuotes) {
  for (const std::string_view plain : {"", "a", "model.layers.0.mlp.experts[17]/w 1~"}) {
    EXPECT_TRUE(IsPlainJson(plain)) << plain;
    const std::string quoted = "\"" + std::string(plain) + "\"";
    ASSERT_OK_AND_ASSIGN(const std::string_view token, ScanJsonString(quoted, 0));
    EXPECT_EQ(token, quoted);
  }
  constexpr std::string_view kNul("\0", 1);
  for (const std::string_view other : std::vector<std::string_view>{"\"", "a\\b", "a\nb", "\x7f", "\xc3\xa9", kNul}) {
    EXPECT_FALSE(IsPlainJson(other)) << other;
  }
}

TEST(JsonTokenTest, ANumberEndsWithItsDigits) {
  for (const std::string number : {"0", "-0", "7", "120", "-1", "1.5", "0.25e+10", "1E-3", "-2.0e7"}) {
    const std::string text = number + ",";
    ASSERT_OK_AND_ASSIGN(const std::string_view token, ScanJsonNumber(text, 0));
    EXPECT_EQ(token, number);
  }
  // No digit may follow a leading zero, so the next character is the reader's error.
  EXPECT_THAT(ScanJsonNumber("01", 0), IsOkAndHolds("0"));
}

TEST(JsonTokenTest, AnIncompleteNumberIsRefusedAtItsByte) {
  for (const std::string_view number : {"-", "1.", "1.e5", "1e", "1e+", ".5", "+1", "-a", ""}) {
    EXPECT_THAT(ScanJsonNumber(number, 0), StatusIs(StatusCode::kDataLoss, testing::HasSubstr("expected a digit")))
        << number;
  }
}

}  // namespace
}  // namespace fsdp
