// SPDX-License-Identifier: Apache-2.0
//
// The rules of docs/checkpoint_format.md about attributes, on texts that may be hostile.
#include "fsdp/checkpoint/native/format/stored_attributes.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// A document and a view of `text` are decoded alike.
absl::StatusOr<RunMetadata> Decode(const std::string& text) {
  const absl::StatusOr<RunMetadata> decoded = DecodeAttributes(nlohmann::json::parse(text));
  if (const absl::StatusOr<JsonView> view = JsonView::Parse(text); view.ok()) {
    const absl::StatusOr<RunMetadata> viewed = DecodeAttributes(*view);
    EXPECT_EQ(viewed.status(), decoded.status());
    if (viewed.ok() && decoded.ok()) {
      EXPECT_EQ(*viewed, *decoded);
    }
  }
  return decoded;
}

Manifest ManifestWith(const RunMetadata& attributes) {
  Manifest manifest;
  manifest.save = {.id = "0123456789abcdef0123456789abcdef",
                   .step = 1,
                   .type = StateDictType::kFull,
                   .world_size = 1,
                   .writers = 1,
                   .producer = kProducer,
                   .attributes = attributes};
  return manifest;
}

TEST(StoredAttributesTest, AValueKeepsItsTypeAndEveryBit) {
  const RunMetadata attributes = {{"bool", false},
                                  {"double", 10000.0},
                                  {"denormal", std::numeric_limits<double>::denorm_min()},
                                  {"least", std::numeric_limits<int64_t>::min()},
                                  {"most", std::numeric_limits<int64_t>::max()},
                                  {"null", AttributeValue()},
                                  {"text \"\\\n", "α \"\\\n\t"},
                                  {"third", 1.0 / 3}};
  ASSERT_OK_AND_ASSIGN(const RunMetadata decoded, Decode(EncodeAttributes(attributes, "  ")));
  EXPECT_EQ(decoded, attributes);
  ASSERT_OK_AND_ASSIGN(const RunMetadata zero, Decode(EncodeAttributes({{"zero", -0.0}}, "")));
  EXPECT_TRUE(std::signbit(std::get<double>(zero.at("zero"))));
}

TEST(StoredAttributesTest, AManifestHasOneMemberALineSortedByName) {
  const std::string text = EncodeManifest(ManifestWith({{"options.lr", 0.001}, {"model.n_head", 4}}));
  EXPECT_THAT(
      text,
      HasSubstr("\"writers\": 1,\n  \"attributes\": {\n    \"model.n_head\": 4,\n    \"options.lr\": 0.001\n  },\n"));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, DecodeManifest(text));
  EXPECT_EQ(manifest.save.attributes, (RunMetadata{{"model.n_head", 4}, {"options.lr", 0.001}}));
  EXPECT_EQ(EncodeManifest(manifest), text);
}

TEST(StoredAttributesTest, TheDigestOfAManifestCoversThem) {
  std::string text = EncodeManifest(ManifestWith({{"model.n_head", 4}}));
  text[text.find("\"model.n_head\": 4") + 16] = '3';
  EXPECT_THAT(DecodeManifest(text), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(StoredAttributesTest, AValueThatIsNoScalarIsRefusedByName) {
  for (const char* value : {"[]", "{}", "{\"a\": 1}", "18446744073709551615"}) {
    EXPECT_THAT(Decode(absl::StrCat("{\"a.b\": ", value, "}")),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("attribute \"a.b\": it is not a scalar")));
  }
  EXPECT_THAT(Decode("[1]"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not an object")));
}

// Regression: the parser rounded them to the nearest double, and the attribute changed.
TEST(StoredAttributesTest, AnIntegerBeyond64BitsIsRefusedByName) {
  for (const char* value : {"18446744073709551616", "-9223372036854775809"}) {
    std::string text = EncodeManifest(ManifestWith({{"model.n_head", 4}}));
    text.resize(text.size() - SealBytes());
    text.replace(text.find("\"model.n_head\": 4") + 16, 1, value);
    EXPECT_THAT(DecodeManifest(Seal(text)),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr(absl::StrCat("\"model.n_head\": ", value, " is an integer beyond 64 bits"))));
  }
}

TEST(StoredAttributesTest, AHostileManifestCannotHoldMoreThanTheBounds) {
  std::string many = "{\"n\": 0";
  for (size_t i = 0; i < kMaxAttributes; ++i) absl::StrAppend(&many, ", \"", i, "\": 0");
  EXPECT_THAT(Decode(many + "}"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("4097 attributes, expected at most")));
  const std::string large = "{\"a\": \"" + std::string(kMaxAttributesBytes, 'x') + "\"}";
  EXPECT_THAT(Decode(large), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("more than 1048576 bytes")));
  const std::string name = "{\"" + std::string(kMaxAttributeNameBytes + 1, 'x') + "\": 1}";
  EXPECT_THAT(Decode(name), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("more than 256")));
}

TEST(StoredAttributesTest, ANameThatIsThereTwiceIsRefused) {
  std::string text = EncodeManifest(ManifestWith({{"a", 1}, {"b", 2}}));
  text.resize(text.size() - SealBytes());
  text.replace(text.find("\"b\""), 3, "\"a\"");
  EXPECT_THAT(DecodeManifest(Seal(text)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"a\" appears twice")));
}

}  // namespace
}  // namespace fsdp
