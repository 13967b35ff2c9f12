// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/crc32c.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_format.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_testutil.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_values.h"
#include "fsdp/checkpoint/foreign/orbax/zarr_array.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(OcdbtFormatTest, AFrameIsComparedWithItsLengthAndItsCrc) {
  const std::string frame = OcdbtLeaf({{"a", "1"}});
  EXPECT_OK(OcdbtNode::Parse(frame, "").status());
  std::string flipped = frame;
  flipped[20] ^= 1;
  EXPECT_THAT(OcdbtNode::Parse(flipped, ""), StatusIs(StatusCode::kDataLoss, HasSubstr("its CRC32C is")));
  EXPECT_THAT(OcdbtNode::Parse(frame + "x", ""),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("states a length of"), HasSubstr("and has"))));
  EXPECT_THAT(ParseOcdbtManifest(frame), StatusIs(StatusCode::kDataLoss, HasSubstr("expected 0cdb3a2a")));
  EXPECT_THAT(OcdbtNode::Parse("", ""), StatusIs(StatusCode::kDataLoss, HasSubstr("truncated")));
}

TEST(OcdbtFormatTest, ALaterVersionIsNamed) {
  std::string frame = OcdbtLeaf({{"a", "1"}});
  frame[12] = 1;
  frame.resize(frame.size() - 4);
  EXPECT_THAT(OcdbtNode::Parse(frame + FixedBytes(Crc32c(frame), 4), ""),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("it has version 1, expected 0")));
}

TEST(OcdbtFormatTest, ADataFileStaysInsideOfTheDirectory) {
  for (const char* path : {"../d", "/etc/passwd", "d/../../x", "d//x", ""}) {
    EXPECT_THAT(OcdbtNode::Parse(OcdbtLeafOfFile("a", path, 0, 1), ""),
                StatusIs(StatusCode::kDataLoss, HasSubstr("is not a path of names inside")))
        << path;
  }
}

// The first version of every database has no keys, and its place no path.
TEST(OcdbtFormatTest, OnlyTheDataFileOfTheNewestRootHasToBeAPath) {
  OcdbtTestManifest manifest;
  manifest.file = "";
  EXPECT_OK(ParseOcdbtManifest(manifest.Frame()).status());
  manifest.nbytes = 10;
  EXPECT_THAT(ParseOcdbtManifest(manifest.Frame()),
              StatusIs(StatusCode::kDataLoss, HasSubstr("is not a path of names inside")));
}

TEST(OcdbtFormatTest, ABodyThatEndsAnywhereIsTruncated) {
  const std::string whole = OcdbtInterior(1, {{"a", 0, 10}, {"b", 10, 10}});
  const std::string body = whole.substr(14, whole.size() - 18);
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_THAT(OcdbtNode::Parse(OcdbtFrame(kTestNodeMagic, body.substr(0, size)), ""),
                StatusIs(StatusCode::kDataLoss, HasSubstr("truncated")))
        << size;
  }
  EXPECT_THAT(OcdbtNode::Parse(OcdbtFrame(kTestNodeMagic, body + "x"), ""),
              StatusIs(StatusCode::kDataLoss, HasSubstr("there are bytes behind its last value")));
}

TEST(OcdbtFormatTest, ANumberOfEntriesThatTheBytesCannotHaveIsRefusedBeforeItIsAllocated) {
  const std::string body = FixedBytes(0, 1) + OcdbtFiles({}) + VarintBytes(1000000) + "abc";
  EXPECT_THAT(OcdbtNode::Parse(OcdbtFrame(kTestNodeMagic, body), ""),
              StatusIs(StatusCode::kDataLoss, HasSubstr("list of keys is truncated")));
}

// A database in a directory, from its nodes.
class OcdbtValuesTest : public testing::Test {
 protected:
  OcdbtValuesTest() { std::filesystem::create_directories(root_ + "/d"); }

  // Writes one node after the other to d/nodes; the last is the root.
  void Write(const std::vector<std::string>& nodes, OcdbtTestManifest manifest) {
    std::string bytes;
    for (const std::string& node : nodes) bytes += node;
    manifest.nbytes = nodes.back().size();
    manifest.offset = bytes.size() - manifest.nbytes;
    if (manifest.tree_bytes == 0) manifest.tree_bytes = bytes.size();
    WriteAll(root_ + "/d/nodes", bytes);
    WriteAll(root_ + "/manifest.ocdbt", manifest.Frame());
  }

  absl::Status Open() { return OpenOcdbtValues(root_).status(); }

  const std::string root_ = NewTestDirectory();
};

TEST_F(OcdbtValuesTest, KeysOfAllLeavesAreFound) {
  const std::string a = OcdbtLeaf({{"a/.zarray", "A"}, {"a/0", "value"}});
  const std::string b = OcdbtLeaf({{"b/0", ""}, {"b/zarr.json", "B"}, {"c", "alone"}});
  Write({a, b, OcdbtInterior(1, {{"a/.zarray", 0, a.size()}, {"b/0", a.size(), b.size()}})}, {.height = 1, .keys = 5});
  ASSERT_OK_AND_ASSIGN(const auto values, OpenOcdbtValues(root_));
  EXPECT_THAT(values->arrays(), ElementsAre("a", "b"));
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"a/.zarray", "A"}, {"a/0", "value"}, {"b/0", ""}, {"b/zarr.json", "B"}, {"c", "alone"}}) {
    ASSERT_OK_AND_ASSIGN(const auto place, values->Find(key));
    ASSERT_TRUE(place.has_value()) << key;
    EXPECT_THAT(values->ReadWhole(*place, 100), IsOkAndHolds(value));
  }
  for (const char* key : {"", "a", "a/", "a/00", "a/0/", "b/1", "d", "cc"}) {
    ASSERT_OK_AND_ASSIGN(const auto place, values->Find(key));
    EXPECT_FALSE(place.has_value()) << key;
  }
}

TEST_F(OcdbtValuesTest, ANodeThatTwoPlacesReferToIsDamage) {
  const std::string leaf = OcdbtLeaf({{"b", "1"}});
  Write({leaf, OcdbtInterior(1, {{"a", 0, leaf.size()}, {"b", 0, leaf.size()}})}, {.height = 1, .keys = 2});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("two places of the tree refer to this node")));
}

TEST_F(OcdbtValuesTest, ANodeThatRefersToItselfEnds) {
  std::string root;
  for (int i = 0; i < 3; ++i) root = OcdbtInterior(1, {{"a", 0, root.size()}});  // its own length
  Write({root}, {.height = 1, .keys = 1});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("two places of the tree refer to this node")));
}

TEST_F(OcdbtValuesTest, KeysThatAreNotInOrderAreDamage) {
  Write({OcdbtLeaf({{"b", "1"}, {"a", "2"}})}, {.keys = 2});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("key \"a\" is not behind the key before it")));
  const std::string leaf = OcdbtLeaf({{"a", "1"}});
  Write({leaf, OcdbtInterior(1, {{"b", 0, leaf.size()}})}, {.height = 1, .keys = 1});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("is not behind the key before it")));
}

TEST_F(OcdbtValuesTest, WhatTheManifestStatesIsComparedWithTheTree) {
  const std::string leaf = OcdbtLeaf({{"a", "1"}});
  Write({leaf}, {.keys = 2});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("it has 2 keys, but its tree has 1")));
  Write({leaf}, {.keys = 1, .tree_bytes = 7});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("its tree has 7 bytes, but its nodes have")));
  Write({leaf}, {.height = 1, .keys = 1});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("the node has height 0, expected 1")));
}

TEST_F(OcdbtValuesTest, AValueBeyondTheEndOfItsFileIsFoundWhenItIsOpened) {
  Write({OcdbtLeafOfFile("a", "d/values", 10, 5)}, {.keys = 1});
  EXPECT_THAT(Open(), StatusIs(StatusCode::kNotFound, HasSubstr("d/values")));
  WriteAll(root_ + "/d/values", std::string(14, '\x01'));  // printable bytes would be a text
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss,
                               AllOf(HasSubstr("d/values: its last value ends at byte 15"), HasSubstr("only 14"))));
  WriteAll(root_ + "/d/values", "0123456789abcde");
  ASSERT_OK_AND_ASSIGN(const auto values, OpenOcdbtValues(root_));
  ASSERT_OK_AND_ASSIGN(const auto place, values->Find("a"));
  EXPECT_THAT(values->ReadWhole(*place, 5), IsOkAndHolds("abcde"));
  EXPECT_THAT(values->ReadWhole(*place, 4), StatusIs(StatusCode::kResourceExhausted, HasSubstr("at most 4")));
}

TEST_F(OcdbtValuesTest, ABrokenValueIsNamedByItsKeyAndByTheFileThatHasIt) {
  Write({OcdbtLeafOfFile("w/.zarray", "d/values", 10, 5)}, {.keys = 1});
  WriteAll(root_ + "/d/values", "0123456789abcde");
  ASSERT_OK_AND_ASSIGN(const auto values, OpenOcdbtValues(root_));
  ChunkMemory memory;
  EXPECT_THAT(ZarrArray::Open(*values, "w", 0, memory),
              StatusIs(StatusCode::kDataLoss, HasSubstr("w/.zarray in d/values, bytes 10 to 15: not JSON at byte 1")));
}

TEST_F(OcdbtValuesTest, TheNewestNumberedManifestIsRead) {
  WriteAll(root_ + "/manifest.ocdbt", OcdbtTestManifest{.is_numbered = true}.Frame());
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("and there is none")));
  const std::string old_leaf = OcdbtLeaf({{"old", "1"}});
  const std::string leaf = OcdbtLeaf({{"new", "1"}});
  WriteAll(root_ + "/d/nodes", old_leaf + leaf);
  OcdbtTestManifest manifest = {.nbytes = old_leaf.size(), .keys = 1, .tree_bytes = old_leaf.size(), .generation = 9};
  WriteAll(root_ + "/manifest.0000000000000009", manifest.Frame());
  manifest.offset = old_leaf.size();
  manifest.nbytes = manifest.tree_bytes = leaf.size();
  manifest.generation = 10;
  WriteAll(root_ + "/manifest.000000000000000a", manifest.Frame());
  ASSERT_OK_AND_ASSIGN(const auto values, OpenOcdbtValues(root_));
  ASSERT_OK_AND_ASSIGN(const auto place, values->Find("new"));
  EXPECT_TRUE(place.has_value());
  // A manifest under another's name would be an older or newer version of the checkpoint.
  std::filesystem::rename(root_ + "/manifest.0000000000000009", root_ + "/manifest.000000000000000b");
  EXPECT_THAT(Open(), StatusIs(StatusCode::kDataLoss, HasSubstr("has generation 9, whose manifest is named")));
}

TEST_F(OcdbtValuesTest, APointerOfGitLfsIsNamed) {
  Write({OcdbtLeaf({{"a", "1"}})}, {.keys = 1});
  WriteAll(
      root_ + "/manifest.ocdbt",
      absl::StrCat("version https://git-lfs.github.com/spec/v1\noid sha256:", std::string(64, 'a'), "\nsize 123\n"));
  EXPECT_THAT(Open(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("Git LFS pointer")));
}

}  // namespace
}  // namespace fsdp
