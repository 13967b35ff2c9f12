// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/json_view.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/source/json_document.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kExample[] = R"( { "a" : 7 , "b\u0063" : "x\n\"}\\" ,
  "list": [ 1, [2, "]"], {"k": "v,"} ,[] ], "none": null, "empty": {}, "half": 0.5, "minus": -1,
  "most": 9223372036854775807, "beyond": 9223372036854775808, "names": ["p", "q\t"], "é": [ 3 , 4 ] }
)";

TEST(JsonViewTest, MembersAreFoundInPlace) {
  ASSERT_OK_AND_ASSIGN(const JsonView view, JsonView::Parse(kExample));
  EXPECT_EQ(IntegerMember(view, "a").value(), 7);
  EXPECT_EQ(StringMember(view, "bc").value(), "x\n\"}\\");
  EXPECT_EQ(view.Find("none")->text(), "null");
  EXPECT_FALSE(view.Find("k"));
  EXPECT_FALSE(view.Find("a")->Find("a"));
  EXPECT_EQ(IntegerMember(view, "most").value(), INT64_MAX);
  EXPECT_THAT(IntegerArrayMember(view, "é", 2).value(), ElementsAre(3, 4));
  EXPECT_THAT(StringArrayMember(view, "names", 2).value(), ElementsAre("p", "q\t"));
  EXPECT_EQ(view.members().size(), 11);
  EXPECT_EQ(view.members()[1].first, "bc");
}

TEST(JsonViewTest, ElementsComeInOrder) {
  ASSERT_OK_AND_ASSIGN(const JsonView view, JsonView::Parse(kExample));
  ASSERT_OK_AND_ASSIGN(const JsonView list, ArrayMember(view, "list"));
  std::vector<std::string> texts;
  for (const JsonView element : list) texts.emplace_back(element.text());
  EXPECT_THAT(texts, ElementsAre("1", "[2, \"]\"]", "{\"k\": \"v,\"}", "[]"));
  EXPECT_EQ(list.size(), 4);
  for (const JsonView element : *view.Find("empty")) FAIL() << element.text();
}

TEST(JsonViewTest, AMemberOfAnotherTypeIsNamed) {
  ASSERT_OK_AND_ASSIGN(const JsonView view, JsonView::Parse(kExample));
  for (const char* name : {"absent", "bc", "half", "minus", "beyond", "none", "list"}) {
    EXPECT_THAT(IntegerMember(view, name),
                StatusIs(absl::StatusCode::kDataLoss,
                         absl::StrCat("member \"", name, "\" is missing or not an integer from 0 to 2^63 - 1")));
  }
  EXPECT_THAT(StringMember(view, "a"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not a string")));
  EXPECT_THAT(ArrayMember(view, "empty"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not an array")));
  EXPECT_THAT(IntegerArrayMember(view, "list", 9), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of integers")));
  EXPECT_THAT(IntegerArrayMember(view, "é", 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 2 elements, expected at most 1")));
}

TEST(JsonViewTest, UnknownMembersAreKeptAsTheyAreWritten) {
  ASSERT_OK_AND_ASSIGN(const JsonView view, JsonView::Parse(R"({"a": 1, "z": [1.50, " x ", {"k" : null}], "b": 2})"));
  EXPECT_EQ(UnknownMembers(view, {"b", "a"}), R"(, "z": [1.50," x ",{"k":null}])");
  EXPECT_EQ(UnknownMembers(view, {"a", "b", "z"}), "");
}

TEST(JsonViewTest, SizesAreCountedAndBounded) {
  ASSERT_OK_AND_ASSIGN(const JsonView view, JsonView::Parse(R"({"a": [1, 22, 333], "b": "[1, 2]", "c": {}})"));
  EXPECT_EQ(view.size(), 3);
  EXPECT_EQ(view.Find("a")->size(), 3);
  EXPECT_EQ(view.Find("b")->size(), 0);
  EXPECT_EQ(view.Find("c")->size(), 0);
  EXPECT_EQ(MostElements(*view.Find("a"), "1"), 3);
  EXPECT_EQ(MostElements(*view.Find("a"), "333333"), 2);
}

// The same value as a document has.
void ExpectSame(const JsonView& view, const json& document) {
  EXPECT_EQ(view.is_object(), document.is_object());
  EXPECT_EQ(view.is_array(), document.is_array());
  if (document.is_object()) {
    ASSERT_EQ(view.members().size(), document.size()) << view.text();
    for (const auto& [name, value] : document.items()) {
      const std::optional<JsonView> member = view.Find(name);
      ASSERT_TRUE(member) << name << " of " << view.text();
      ExpectSame(*member, value);
    }
  } else if (document.is_array()) {
    ASSERT_EQ(view.size(), static_cast<int64_t>(document.size())) << view.text();
    size_t at = 0;
    for (const JsonView element : view) ExpectSame(element, document[at++]);
  } else {
    EXPECT_EQ(json::parse(view.text(), nullptr, false), document);
    EXPECT_EQ(view.string().has_value(), document.is_string());
    if (document.is_string()) {
      EXPECT_EQ(*view.string(), document.get<std::string>());
    }
  }
}

TEST(JsonViewTest, AMutatedTextIsReadAsADocumentIsOrRefusedAsItIs) {
  const std::string good = kExample;
  std::mt19937 random(1);
  const std::string alphabet = "0123456789-.eE\"{}[],: \\unaz\n\xc3\xa9\xef\xbb\xbf";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint32_t k = 0; k <= random() % 3; ++k) text[random() % text.size()] = alphabet[random() % alphabet.size()];
    if (random() % 8 == 0) text.insert(0, "\xef\xbb\xbf");
    const absl::StatusOr<json> document = ParseJson(text);
    const absl::StatusOr<JsonView> view = JsonView::Parse(text);
    ASSERT_EQ(view.status(), document.status()) << text;
    if (!view.ok()) continue;
    ++accepted;
    ExpectSame(*view, *document);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace fsdp
