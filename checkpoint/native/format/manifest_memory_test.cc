// SPDX-License-Identifier: Apache-2.0
//
// Manifests that are large and have a right digest: what they cost (decode_memory_testutil.h).
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "fsdp/checkpoint/source/decode_memory_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

absl::Status Decode(std::string_view text) { return DecodeManifest(text).status(); }

Manifest Small() {
  Manifest manifest;
  manifest.save.id = std::string(32, 'a');
  manifest.save.producer = kProducer;
  manifest.files = {{"a.h5", 1 << 20, {{{0, 1}, {Digest{1, 2}}}}, {}, std::nullopt, ""}};
  manifest.tensors = {{StateKey::Model("w"), {"alias"}, DType::kUInt8, {1}, {{{0, 1}, 0, 0}}, ""}};
  manifest.units = {{"u", {{"w", 0, 1}}, 1}};
  return manifest;
}

// A manifest that a save could write: many of one thing.
std::string Many(const std::string& what) {
  Manifest manifest = Small();
  StoredFile& file = manifest.files[0];
  file.nbytes = int64_t{1} << 50;
  if (what == "digests") file.extents = {NewPayloadExtent({0, int64_t{1'000'000} << 20})};
  for (int64_t i = 1; what == "extents" && i < 480'000; ++i) file.extents.push_back({{i, 1}, {Digest{1, 2}}});
  for (int i = 0; what == "intervals" && i < 800'000; ++i) manifest.tensors[0].intervals.push_back({{0, 1}, 0, 0});
  for (int i = 0; what == "parameters" && i < 1'000'000; ++i) manifest.units[0].parameters.push_back({"w", 0, 1});
  for (int i = 0; what == "tensors" && i < 360'000; ++i) {
    manifest.tensors.push_back(manifest.tensors[0]);
    manifest.tensors.back().key = StateKey::Model(absl::StrCat("w", i));
    manifest.tensors.back().aliases.clear();
  }
  for (int i = 0; what == "files" && i < 400'000; ++i) {
    manifest.files.push_back({absl::StrCat("f", i, ".h5"), 1, {}, {}, std::nullopt, ""});
  }
  return EncodeManifest(manifest);
}

// A manifest that no save writes: the small one with `from` replaced by `before`, many items, and `after`.
std::string Crafted(std::string_view from, std::string_view before, absl::FunctionRef<std::string(int)> item,
                    std::string_view after) {
  std::string text = EncodeManifest(Small());
  text.resize(text.size() - SealBytes());
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return Seal(ManyItems(absl::StrCat(text.substr(0, at), std::string(before)), item,
                        absl::StrCat(std::string(after), text.substr(at + from.size()))));
}

TEST(ManifestMemoryTest, ALargeManifestCostsFourTimesItsTextAnd64MiB) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  for (const char* what : {"digests", "extents", "intervals", "parameters", "tensors", "files"}) {
    ExpectCheapDecoding(what, Many(what), /*is_accepted=*/true, Decode);
  }
}

TEST(ManifestMemoryTest, ACraftedManifestCostsNoMore) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto same = [](const char* text) { return [text](int) { return std::string(text); }; };
  const auto number = [](int i) { return absl::StrCat("\"", i, "\""); };
  const auto member = [](int i) { return absl::StrCat("\"", i, "\":0"); };
  const auto tensor = [](int i) {
    return absl::StrCat(R"({"name":"model/)", i, R"(","dtype":"bool","shape":[1,1,1,1,1],"intervals":[]})");
  };
  const auto file = [](int i) {
    return absl::StrCat("{\"name\":\"", i, "\",\"bytes\":0,\"rest_digest\":\"", std::string(32, '0'),
                        "\",\"extents\":[]}");
  };
  const auto cheap = [](const char* what, bool is_accepted, const std::string& text) {
    ExpectCheapDecoding(what, text, is_accepted, Decode);
  };
  cheap("objects", true, Crafted("\"step\"", "\"zzz\": [", same("{}"), "], \"step\""));
  cheap("numbers", true, Crafted("\"step\"", "\"zzz\": [", same("1"), "], \"step\""));
  cheap("short aliases", false, Crafted("\"alias\"", "", same("\"\""), ""));
  cheap("aliases", false, Crafted("\"alias\"", "", number, ""));
  cheap("dimensions", false, Crafted("\"shape\": [1]", "\"shape\": [", same("1"), "]"));
  cheap("short tensors", true, Crafted("\"tensors\": [", "\"tensors\": [", tensor, ","));
  cheap("empty tensors", false, Crafted("\"tensors\": [", "\"tensors\": [", same("{}"), ","));
  cheap("short files", true, Crafted("\"files\": [", "\"files\": [", file, ","));
  cheap("parity", false, Crafted("\"step\"", "\"parity\": {\"data\": [", same("\"a.h5\""), "]}, \"step\""));
  cheap("values in an attribute", false, Crafted("\"step\"", "\"attributes\": {\"a\": [", same("{}"), "]}, \"step\""));
  cheap("attributes", false, Crafted("\"step\"", "\"attributes\": {", member, "}, \"step\""));
  cheap("members", false, Crafted("\"step\"", "", member, ", \"step\""));
}

TEST(ManifestMemoryTest, ALongStringIsNotCopied) {
  if (!CanMeasurePeak()) GTEST_SKIP() << "peak memory is not measured here";
  const auto large = [](int) { return std::string(kCostlyTextBytes, 'x'); };
  const auto cheap = [](const char* what, bool is_accepted, const std::string& text) {
    ExpectCheapDecoding(what, text, is_accepted, Decode);
  };
  cheap("an unknown member", true, Crafted("\"step\"", "\"zzz\": \"", large, "\", \"step\""));
  cheap("a name of a member", true, Crafted("\"step\"", "\"", large, "\": 0, \"step\""));
  cheap("a string that is not UTF-8", false, Crafted("\"step\"", "\"zzz\": \"", large, "\xff\", \"step\""));
  cheap("an attribute", false, Crafted("\"step\"", "\"attributes\": {\"a\": \"", large, "\"}, \"step\""));
  cheap("a tensor's name", false, Crafted("model/w", "model/", large, ""));
  cheap("a number", false,
        Crafted(
            "\"step\": 0", "\"step\": 1", [](int) { return std::string(kCostlyTextBytes, '1'); }, ""));
}

TEST(ManifestMemoryTest, TheLimitIsInTheError) {
  const auto member = [](int i) { return absl::StrCat("\"", i, "\":0"); };
  const std::string text = Crafted("\"step\"", "", member, ", \"step\"");
  EXPECT_THAT(
      Decode(text),
      StatusIs(absl::StatusCode::kDataLoss,
               HasSubstr(absl::StrCat("the values up to here take more than ", 3 * text.size() + (size_t{48} << 20),
                                      " bytes of memory, the limit for ", text.size(), " bytes of text"))));
}

}  // namespace
}  // namespace fsdp
