// SPDX-License-Identifier: Apache-2.0
//
// Tests that damaged and hostile manifests are refused.
#include "fsdp/checkpoint/native/format/manifest_json.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/sealed_json.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Manifest Example() {
  Manifest manifest;
  manifest.save.id = "0123456789abcdef0123456789abcdef";
  manifest.save.step = 100;
  manifest.save.type = StateDictType::kSharded;
  manifest.save.world_size = 2;
  manifest.save.writers = 2;
  manifest.save.producer = kProducer;
  manifest.units = {{"h.0", {{"w", 0, 6}}, 6}};
  const Digest digest = {1, 2};
  manifest.files = {{"rank-00000-of-00002.h5", 8192, {{{4096, 12}, {digest}}}, digest, std::nullopt, ""},
                    {"rank-00001-of-00002.h5",
                     5000000,
                     {{{0, 12}, {digest}}, {{4096, 4194305}, {digest, digest}}},
                     digest,
                     ByteRange{4096, 4194305},
                     ""}};
  StoredTensor tensor = {StateKey::OptimState("a/b", "exp/avg"), {}, DType::kFloat32, {3, 2}, {}, ""};
  tensor.intervals = {{{0, 3}, 0, 4096}, {{3, 6}, 1, 0}};
  manifest.tensors = {tensor};
  tensor.key = StateKey::Model("w");
  tensor.aliases = {"v"};
  manifest.tensors.push_back(tensor);
  manifest.texts = {{StateKey::ParamGroups(), 0, {4096, 5}}};
  return manifest;
}

// The example's text with one piece replaced, sealed again: a crafted file, not one damaged by accident.
std::string With(const std::string& from, const std::string& to) {
  std::string text = EncodeManifest(Example());
  text.resize(text.size() - SealBytes());
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return Seal(absl::StrReplaceAll(text, {{from, to}}));
}

TEST(ManifestJsonTest, ADecodedManifestEncodesToTheSameText) {
  const std::string text = EncodeManifest(Example());
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, DecodeManifest(text));
  EXPECT_EQ(EncodeManifest(manifest), text);
  EXPECT_EQ(manifest.tensors[0].key, StateKey::OptimState("a/b", "exp/avg"));
  EXPECT_EQ(manifest.files[1].extents[1].digests.size(), 2);
}

TEST(ManifestJsonTest, AnExtentNamesTheLengthOfItsBlocksUnlessItIs4MiB) {
  Manifest manifest = Example();
  StoredExtent& extent = manifest.files[1].extents[1];
  extent = NewPayloadExtent(extent.range);
  EXPECT_EQ(extent.digests.size(), 5);
  EXPECT_EQ(extent.block(4), (ByteRange{4096 + 4194304, 1}));
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, HasSubstr("\"bytes\": 4194305, \"block\": 1048576, \"digests\""));
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodeManifest(text));
  EXPECT_EQ(decoded.files[1].extents, manifest.files[1].extents);
  EXPECT_EQ(decoded.files[0].extents[0].block_bytes, kBlockBytes);
  for (const char* block : {"0", "32768", "1048577", "8388608"}) {
    EXPECT_THAT(
        DecodeManifest(With("4194305, \"digests\"", absl::StrCat("4194305, \"block\": ", block, ", \"digests\""))),
        StatusIs(absl::StatusCode::kDataLoss,
                 HasSubstr(absl::StrCat("blocks of ", block, " bytes, expected a power of two"))));
  }
}

TEST(ManifestJsonTest, UnknownMembersAreKeptAndIgnored) {
  const std::string text = With("\"step\": 100", "\"step\": 100, \"weather\": {\"a\": [1, 2.5, null]}");
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, DecodeManifest(text));
  EXPECT_THAT(EncodeManifest(manifest), HasSubstr("\"weather\": {\"a\":[1,2.5,null]}"));
  ASSERT_OK_AND_ASSIGN(const Manifest in_tensor,
                       DecodeManifest(With("\"dtype\": ", "\"color\": \"red\", \"dtype\": ")));
  EXPECT_THAT(EncodeManifest(in_tensor), HasSubstr("\"color\": \"red\""));
}

TEST(ManifestJsonTest, AnUnknownStepIsAMemberThatOlderReleasesIgnore) {
  Manifest manifest = Example();
  EXPECT_THAT(EncodeManifest(manifest), Not(HasSubstr("step_is_unknown")));
  manifest.save.step = 0;
  manifest.save.has_step = false;
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, HasSubstr("\"step\": 0,\n  \"step_is_unknown\": true,\n"));
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodeManifest(text));
  EXPECT_EQ(decoded.save.known_step(), -1);
  EXPECT_EQ(decoded.save.StepText(), "an unknown step");
  EXPECT_EQ(EncodeManifest(decoded), text);
}

TEST(ManifestJsonTest, AHigherMajorVersionNamesTheReleaseThatReadsIt) {
  EXPECT_THAT(DecodeManifest(With("\"version\": \"1.0\"", "\"version\": \"2.3\"")),
              StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("format version 2.3 is newer than 1.0"),
                                                               HasSubstr("fsdp 2.0.0 or later reads it"))));
  EXPECT_THAT(DecodeManifest(With("\"version\": \"1.0\"", "\"version\": \"2.0\", \"readable_by\": \"fsdp 0.9.0\"")),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("fsdp 0.9.0 reads it")));
  EXPECT_OK(DecodeManifest(With("\"version\": \"1.0\"", "\"version\": \"1.7\"")));
}

TEST(ManifestJsonTest, ABrokenMemberIsNamed) {
  const struct {
    std::string from, to, message;
  } kCases[] = {
      {"\"step\": 100", "\"step\": -1", "\"step\" is missing or not an integer"},
      {"\"step\": 100", "\"step\": 1.5", "\"step\""},
      {"\"step\": 100", "\"step\": 9223372036854775808", "\"step\""},
      {"\"step\": 100", "\"step\": 1, \"step\": 2", "\"step\" appears twice"},
      {"\"step\": 100", "\"steps\": 100", "\"step\""},
      {"\"step\": 100", "\"step\": 100, \"step_is_unknown\": true", "\"step_is_unknown\" of step 100"},
      {"\"step\": 100", "\"step\": 0, \"step_is_unknown\": 1", "expected true and step 0"},
      {"\"world_size\": 2", "\"world_size\": 1", "2 writers of a world of 1"},
      {"\"world_size\": 2", "\"world_size\": 9223372036854775807", "expected at most 2147483647"},
      {"\"writers\": 2", "\"writers\": 0", "0 writers of a world of 2"},
      {"sharded", "halved", "unknown state dict type \"halved\""},
      {"\"shape\": [3, 2]", "\"shape\": [4611686018427387904, 4]", "tensor \"optim/state/a/b/exp/avg\""},
      {"\"shape\": [3, 2]", "\"shape\": [2, 2]", "interval [3, 6) of 4 elements"},
      {"\"shape\": [3, 2]", "\"shape\": 6", "\"shape\""},
      {"\"dtype\": \"float32\"", "\"dtype\": \"float31\"", "unknown dtype \"float31\""},
      {"\"begin\": 3, \"end\": 6", "\"begin\": 6, \"end\": 3", "interval [6, 3)"},
      {"\"offset\": 4096}", "\"offset\": 4097}",
       "bytes 4097 to 4108 of rank-00000-of-00002.h5 are not inside an extent"},
      {"\"offset\": 4096}", "\"offset\": 9223372036854775807}", "overflow"},
      {"\"file\": \"rank-00001-of-00002.h5\"", "\"file\": \"absent.h5\"", "file \"absent.h5\" is not among the files"},
      {"{\"name\": \"rank-00000-of-00002.h5\"", "{\"name\": \"../secret\"", "is not the name of a file inside"},
      {"{\"name\": \"rank-00000-of-00002.h5\"", "{\"name\": \"..\"", "is not the name of a file inside"},
      {"{\"name\": \"rank-00000-of-00002.h5\"", "{\"name\": \"/etc/passwd\"", "is not the name of a file inside"},
      {"{\"name\": \"rank-00000-of-00002.h5\"", "{\"name\": \"rank-00001-of-00002.h5\"", "is named twice"},
      {"\"bytes\": 8192", "\"bytes\": 4100", "an extent ends at byte 4108 of 4100"},
      {"{\"offset\": 4096, \"bytes\": 4194305, \"digests\"", "{\"offset\": 8, \"bytes\": 4194305, \"digests\"",
       "overlap"},
      {"{\"offset\": 4096, \"bytes\": 4194305, \"digests\"", "{\"offset\": 4096, \"bytes\": 4194304, \"digests\"",
       "have 2 digests, expected 1"},
      {"{\"offset\": 4096, \"bytes\": 4194305, \"digests\"",
       "{\"offset\": 4096, \"bytes\": 9223372036854775807, \"digests\"", "overflow"},
      {"\"00000000000000010000000000000002\"", "\"1\"", "\"1\" is not a digest"},
      {"\"state\": \"exp/avg\"", "\"state\": \"step\"", "does not end with its state \"step\""},
      {"\"name\": \"model/w\"", "\"name\": \"w\"", "the name has no known section"},
      {"\"name\": \"model/w\"", "\"name\": \"model/\"", "it is empty"},
      {"\"name\": \"model/w\"", "\"name\": \"model/v\"", "is a tensor and an alias"},
      {"\"aliases\": [\"v\"]", "\"aliases\": [\"v\", \"v\"]", "alias \"v\" is named twice"},
      {"\"aliases\": [\"v\"]", "\"aliases\": [\"\"]", "name \"\" cannot be stored: it is empty"},
      {"{\"fqn\": \"w\"", "{\"fqn\": \"w\\u0000\"", "unit \"h.0\": name \"w\\000\" cannot be stored"},
      {"{\"fqn\": \"w\", \"offset\": 0, \"numel\": 6}", "{\"fqn\": \"w\", \"offset\": 1, \"numel\": 6}",
       "is outside of it"},
      {"fsdp checkpoint", "fsdp rank record", "format \"fsdp rank record\" is not \"fsdp checkpoint\""},
      {"\"version\": \"1.0\"", "\"version\": \"one\"", "\"one\" is not a format version, two numbers such as \"1.0\""},
      {"\"version\": \"1.0\"", "\"version\": \"1.\"", "\"1.\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \"1.x\"", "\"1.x\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \"01.0\"", "\"01.0\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \"1.00\"", "\"1.00\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \" 1.0\"", "\" 1.0\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \"+1.0\"", "\"+1.0\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \"1.0.0\"", "\"1.0.0\" is not a format version"},
      {"\"version\": \"1.0\"", "\"version\": \"1\"", "\"1\" is not a format version"},
  };
  for (const auto& bad : kCases) {
    EXPECT_THAT(DecodeManifest(With(bad.from, bad.to)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(bad.message)))
        << bad.to;
  }
}

// Keys of object stores and lines of programs are made of these.
TEST(ManifestJsonTest, WhatNamesASaveHasOneForm) {
  const std::string id = "0123456789abcdef0123456789abcdef";
  for (const std::string& bad :
       {std::string(), std::string("../../../victim"), id.substr(1), id + "0", "X" + id.substr(1), id.substr(1) + "\\n",
        id.substr(1) + "\\u001b", id.substr(1) + "/"}) {
    EXPECT_THAT(DecodeManifest(With(id, bad)),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("member \"save_id\" is \""), HasSubstr("expected 32 lower-case hexadecimal"))))
        << bad;
  }
  for (const std::string& bad : {std::string("\\u001b[31m"), std::string("a\\nb"), std::string(257, 'a')}) {
    EXPECT_THAT(DecodeManifest(With(kProducer, bad)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("member \"producer\" is \"")))
        << bad;
  }
  Manifest linked = Example();
  for (const StoredOrigin& origin : {StoredOrigin{"..", 50, "rank-00000-of-00004.h5"}, StoredOrigin{id, 50, "../x"}}) {
    linked.files[0].origin = origin;
    EXPECT_THAT(DecodeManifest(EncodeManifest(linked)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("file \"rank-00000-of-00002.h5\": member \"")));
  }
}

// 2^60 elements of 8 bytes are 2^63 bytes, which as a negative number would be inside every extent.
TEST(ManifestJsonTest, AnIntervalOfMoreThan2To63BytesIsRefused) {
  constexpr int64_t kNumel = int64_t{1} << 60;
  Manifest manifest = Example();
  manifest.tensors[0].dtype = DType::kFloat64;
  manifest.tensors[0].shape = {kNumel};
  manifest.tensors[0].intervals = {{{0, kNumel}, 0, 4096}};
  EXPECT_THAT(DecodeManifest(EncodeManifest(manifest)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the offset overflows")));
}

// Downloads, verifications and summaries add up these sizes.
TEST(ManifestJsonTest, SizesThatAddUpTo2To63BytesAreRefused) {
  Manifest manifest = Example();
  for (StoredFile& file : manifest.files) file.nbytes = int64_t{1} << 62;
  EXPECT_THAT(DecodeManifest(EncodeManifest(manifest)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the files up to \"rank-00001-of-00002.h5\" have 2^63 bytes or more")));
  manifest = Example();
  for (StoredTensor& tensor : manifest.tensors) {
    tensor.shape = {int64_t{1} << 60};
    tensor.intervals.clear();
  }
  EXPECT_THAT(
      DecodeManifest(EncodeManifest(manifest)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the tensors up to \"model/w\" have 2^63 bytes or more")));
}

TEST(ManifestJsonTest, DeepNestingIsRefused) {
  const std::string deep = absl::StrCat("\"x\": ", std::string(1000000, '['));
  EXPECT_THAT(DecodeManifest(Seal("{" + deep)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("nested more than")));
}

TEST(ManifestJsonTest, TheSealIsComparedFirst) {
  const std::string text = EncodeManifest(Example());
  EXPECT_THAT(DecodeManifest(""), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no digest")));
  EXPECT_THAT(DecodeManifest(text.substr(0, text.size() - 1)), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(DecodeManifest(text + "\n"), StatusIs(absl::StatusCode::kDataLoss));
  std::string bad = text;
  bad[100] ^= 1;
  EXPECT_THAT(DecodeManifest(bad), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(" != recorded ")));
}

// Every accepted manifest can be used: no range leaves its file.
TEST(ManifestJsonTest, MutatedTextsAreRefusedOrSafe) {
  std::mt19937 random(1);
  std::string good = EncodeManifest(Example());
  good.resize(good.size() - SealBytes());
  const std::string alphabet = "0123456789-.eE\"{}[],: \\xaz";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint32_t k = 0; k <= random() % 3; ++k) text[random() % text.size()] = alphabet[random() % alphabet.size()];
    const absl::StatusOr<Manifest> manifest = DecodeManifest(Seal(text));
    if (!manifest.ok()) continue;
    ++accepted;
    for (const StoredTensor& tensor : manifest->tensors) {
      for (const StoredInterval& stored : tensor.intervals) {
        ASSERT_LT(stored.file, static_cast<int>(manifest->files.size()));
        ASSERT_LE(stored.interval.end, tensor.shape.numel());
        if (stored.interval.empty()) continue;
        const int64_t nbytes = stored.interval.size() * SizeOf(tensor.dtype);
        ASSERT_LE(stored.offset, manifest->files[stored.file].nbytes - nbytes);
      }
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace fsdp
