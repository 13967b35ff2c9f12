// SPDX-License-Identifier: Apache-2.0
//
// nlohmann's parser is the judge of what is JSON; only the rules of VisitJson that are stricter are tested by text.
#include "fsdp/checkpoint/source/json_events.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/source/decode_memory_testutil.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::HasSubstr;

absl::Status Visit(std::string_view text) {
  AnyJson any;
  return VisitJson(text, any);
}

bool IsStricter(const absl::Status& status) {
  return absl::StrContains(status.message(), "appears twice") || absl::StrContains(status.message(), "nested more");
}

TEST(JsonEventsTest, ATextIsAcceptedIfItIsJson) {
  for (const char* text :
       {"{}", "[]", "0", "-1.5e3", "\"\"", "true", "null", " [ 1 , [ ] , { } ] ", "{\"a\":{\"b\":[1]}}",
        "\xef\xbb\xbf{}", "\t\r\n{}\n", "[1e-999, 18446744073709551616, -9223372036854775809]"}) {
    EXPECT_OK(Visit(text)) << text;
    EXPECT_TRUE(json::accept(text)) << text;
  }
  for (const char* text : {"",           " ",
                           "{",          "}",
                           "[",          "]",
                           "[1",         "[1,",
                           "[1,]",       "[,1]",
                           "[1 2]",      "{\"a\"",
                           "{\"a\":",    "{\"a\":1",
                           "{\"a\":1,",  "{\"a\":1,}",
                           "{\"a\" 1}",  "{a:1}",
                           "{1:2}",      "{,}",
                           "tru",        "truex",
                           "True",       "nul",
                           "NaN",        "Infinity",
                           "1e999",      "01",
                           "+1",         "--1",
                           "'a'",        "[1]x",
                           "{}{}",       "// x\n1",
                           "\xef\xbb{}", "\xef\xbb\xbf",
                           "[\xc2\xa0]", "{\"a\":1;\"b\":2}",
                           "[1}",        "{\"a\":1]",
                           "\"a",        "\f1"}) {
    EXPECT_THAT(Visit(text), StatusIs(StatusCode::kDataLoss, HasSubstr("not JSON at byte "))) << text;
    EXPECT_FALSE(json::accept(text)) << text;
  }
}

TEST(JsonEventsTest, AMutatedTextIsAcceptedIfItIsJson) {
  const std::string good =
      R"( {"a": [1, -2, 3.5e+7, "x\n\u00e9\ud83d\ude00", {"b": true, "c": [null, false]}], "é": ""} )";
  const std::string alphabet = "0123456789-+.eE\"{}[],: \\/ufnrtalsbd\n\x01\xc3\xa9\xed\xa0\xef\xbb\xbf\xf4\x90\x80";
  std::mt19937 random(1);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string text = good;
    for (uint32_t k = 0; k <= random() % 3; ++k) {
      const char c = alphabet[random() % alphabet.size()];
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        default:
          text.erase(at, 1);
      }
    }
    const absl::Status status = Visit(text);
    if (IsStricter(status)) continue;
    ASSERT_EQ(status.ok(), json::accept(text)) << text << "\n" << status;
    ++(status.ok() ? accepted : refused);
    if (!status.ok()) continue;
    const absl::StatusOr<json> document = ParseJson(text);
    if (document.ok()) {
      ASSERT_EQ(*document, json::parse(text)) << text;
    }
  }
  EXPECT_GT(accepted, 10000);
  EXPECT_GT(refused, 10000);
}

TEST(JsonEventsTest, WhatOtherReadersMayTakeForSomethingElseIsRefused) {
  EXPECT_THAT(Visit(R"({"a": {"b": 1, "\u0062": 2}})"), StatusIs(StatusCode::kDataLoss, "\"a\": \"b\" appears twice"));
  EXPECT_OK(Visit(R"({"a": {"b": 1}, "b": {"b": 1}})"));
  EXPECT_THAT(Visit(std::string_view("{}\0{}", 5)), StatusIs(StatusCode::kDataLoss, "not JSON at byte 3: a NUL byte"));
  for (const int depth : {kMaxJsonDepth, kMaxJsonDepth + 1, 10'000'000}) {
    const std::string text = std::string(depth, '[') + (depth == kMaxJsonDepth ? std::string(depth, ']') : "");
    const absl::Status status = Visit(text);
    EXPECT_EQ(status.ok(), depth == kMaxJsonDepth) << status;
    if (!status.ok()) {
      EXPECT_EQ(status.message(), "JSON is nested more than 64 deep");
    }
  }
}

TEST(JsonEventsTest, ASecondNameIsFoundAmongFewAndMany) {
  for (const int count : {1, 2, 7, 8, 9, 10, 1000}) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) absl::StrAppend(&text, "\"n", i, "\": ", i, ", ");
    EXPECT_OK(Visit(absl::StrCat(text, "\"x\": 0}"))) << count;
    for (const int twice : {0, count / 2, count - 1}) {
      EXPECT_THAT(Visit(absl::StrCat(text, "\"n", twice, "\": 0}")),
                  StatusIs(StatusCode::kDataLoss, absl::StrCat("\"n", twice, "\" appears twice")))
          << count;
    }
  }
}

TEST(JsonEventsTest, NamesHaveALimitOnMemory) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto member = [](int i) { return absl::StrCat("\"", i, "\":0"); };
  const auto object = [](int i) { return absl::StrCat("\"", i, "\":{\"dtype\":\"U8\",\"shape\":[1],\"x\":[0,1]}"); };
  // Deeper objects keep the names of those around them.
  std::string nested;
  for (int depth = 0; depth < 9; ++depth) {
    for (int i = 0; i < 350'000; ++i) absl::StrAppend(&nested, i == 0 ? "{" : ",", "\"", i, "\":0");
    nested += ",\"x\":";
  }
  nested += "0" + std::string(9, '}');
  ExpectCheapDecoding("many names", ManyItems("{", member, "}"), /*is_accepted=*/false, Visit);
  ExpectCheapDecoding("nested names", nested, /*is_accepted=*/false, Visit);
  ExpectCheapDecoding("names of objects", ManyItems("{", object, "}"), /*is_accepted=*/true, Visit);
  // Names of objects that have ended are forgotten.
  ExpectCheapDecoding("the same names",
                      ManyItems(
                          "[", [](int) { return std::string("{\"a\":0,\"b\":0}"); }, "]"),
                      /*is_accepted=*/true, Visit);
}

TEST(JsonEventsTest, TokensAreNotCopied) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto large = [](int) { return std::string(kCostlyTextBytes, '7'); };
  ExpectCheapDecoding("a string", ManyItems("[\"", large, "\"]"), /*is_accepted=*/true, Visit);
  ExpectCheapDecoding("a string that is not UTF-8", ManyItems("[\"", large, "\xff\"]"), /*is_accepted=*/false, Visit);
  ExpectCheapDecoding("a string in a wrong place", ManyItems("[\"", large, "\" 1]"), /*is_accepted=*/false, Visit);
  ExpectCheapDecoding("a string that does not end", ManyItems("[\"", large, ""), /*is_accepted=*/false, Visit);
  ExpectCheapDecoding("an integer", ManyItems("[", large, "]"), /*is_accepted=*/true, Visit);
  ExpectCheapDecoding("a fraction", ManyItems("[0.", large, "]"), /*is_accepted=*/true, Visit);
}

}  // namespace
}  // namespace fsdp
