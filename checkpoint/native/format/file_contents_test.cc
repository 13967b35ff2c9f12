// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/format/file_contents.h"

#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

// A record at [0, 100), a text at [100, 110), then `count` tensors "a", "b", ... of 4 float32 each from byte 128, as in
// a flat shard.
Manifest Flat(int count) {
  Manifest manifest;
  manifest.files.resize(1);
  manifest.files[0].record = ByteRange{0, 100};
  manifest.texts.push_back({StateKey::Extra("step"), 0, {100, 10}});
  for (int i = 0; i < count; ++i) {
    StoredTensor tensor;
    tensor.key = StateKey::Model(std::string(1, static_cast<char>('a' + i)));
    tensor.shape = {4};
    tensor.intervals = {{{0, 4}, 0, 128 + 16 * i}};
    manifest.tensors.push_back(tensor);
  }
  return manifest;
}

TEST(FileContentsTest, ContentsOfARangeAreNamed) {
  const Manifest manifest = Flat(3);
  const FileContents contents(manifest);
  EXPECT_EQ(contents.NameOf(0, {0, 50}), "record");
  EXPECT_EQ(contents.NameOf(0, {100, 28}), "text \"extra/step\"");
  EXPECT_EQ(contents.NameOf(0, {130, 2}), "tensor \"model/a\"");
  EXPECT_EQ(contents.NameOf(0, {143, 2}), "tensors \"model/a\", \"model/b\"");
  EXPECT_EQ(contents.NameOf(0, {128, 48}), "tensors \"model/a\", \"model/b\", \"model/c\"");
  EXPECT_EQ(contents.NameOf(0, {176, 10}), "");
  Manifest guarded = manifest;
  guarded.parity.files = {0};
  EXPECT_EQ(FileContents(guarded).NameOf(0, {176, 10}), "parity");
}

TEST(FileContentsTest, SixteenTensorsAreNamedAndTheOthersCounted) {
  const Manifest manifest = Flat(20);
  const std::string name = FileContents(manifest).NameOf(0, {128, 20 * 16});
  EXPECT_THAT(name, testing::StartsWith("tensors \"model/a\", "));
  EXPECT_THAT(name, testing::EndsWith(", \"model/p\" and 4 more"));
}

TEST(FileContentsTest, BytesOfEachTensorAreVisited) {
  const Manifest manifest = Flat(3);
  std::vector<int64_t> visited;
  FileContents(manifest).VisitTensors(0, {136, 26}, [&](int tensor, const ByteRange& part) {
    visited.insert(visited.end(), {tensor, part.offset, part.nbytes});
  });
  EXPECT_THAT(visited, ElementsAre(0, 136, 8, 1, 144, 16, 2, 160, 2));
}

}  // namespace
}  // namespace fsdp
