// SPDX-License-Identifier: Apache-2.0
//
// Mutated headers: whatever a header says, parsing it ends soon with an error or with entries that cover the payload.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/hugging_face_index.h"
#include "checkpoint/safetensors_header.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Pieces that mean something to a parser.
const std::vector<std::string>& Words() {
  static const auto* words = new std::vector<std::string>{"{",
                                                          "}",
                                                          "[",
                                                          "]",
                                                          ",",
                                                          ":",
                                                          "\"",
                                                          "\\",
                                                          "\\u0000",
                                                          "\\ud800",
                                                          "0",
                                                          "-1",
                                                          "1e9",
                                                          "9223372036854775807",
                                                          "18446744073709551615",
                                                          "18446744073709551616",
                                                          "null",
                                                          "true",
                                                          "{}",
                                                          "[]",
                                                          "\"dtype\":",
                                                          "\"F32\"",
                                                          "\"F4\"",
                                                          "\"shape\":[",
                                                          "\"data_offsets\":[0,",
                                                          "\"__metadata__\":{",
                                                          std::string(1, '\0'),
                                                          "\xFF",
                                                          "\xC3",
                                                          " ",
                                                          "[[[[[[[[[["};
  return *words;
}

std::string Mutate(std::string text, std::mt19937& random) {
  const int mutations = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < mutations && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    const size_t length = std::min<size_t>(random() % 16, text.size() - at);
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] ^= static_cast<char>(1 << (random() % 8));
        break;
      case 2:
        text.insert(at, Words()[random() % Words().size()]);
        break;
      case 3:
        text.erase(at, length);
        break;
      default:
        text.insert(random() % text.size(), text.substr(at, length));
    }
  }
  return text;
}

TEST(SafetensorsFuzzTest, MutatedHeadersAreReadOrRefused) {
  std::ifstream file("checkpoint/testdata/all_dtypes.safetensors", std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_GT(whole.size(), 1280);
  const std::string header = whole.substr(8, 1272);
  std::mt19937 random(1);
  int read = 0;
  for (int i = 0; i < 10'000; ++i) {
    const absl::StatusOr<SafetensorsHeader> parsed = ParseSafetensorsHeader(Mutate(header, random), 573);
    if (!parsed.ok()) continue;
    ++read;
    int64_t end = 0;
    for (const SafetensorsEntry& entry : parsed->entries) {
      ASSERT_EQ(entry.begin, end);
      ASSERT_EQ(entry.end - entry.begin, entry.shape.numel() * SizeOf(entry.dtype));
      end = entry.end;
    }
    ASSERT_EQ(end, 573);
  }
  EXPECT_GT(read, 100);    // names and metadata were changed
  EXPECT_LT(read, 5'000);  // the rest broke a rule
}

TEST(SafetensorsFuzzTest, MutatedIndexesAreReadOrRefused) {
  std::ifstream file("checkpoint/testdata/hf_sharded/model.safetensors.index.json", std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_FALSE(whole.empty());
  std::mt19937 random(2);
  for (int i = 0; i < 10'000; ++i) {
    const absl::StatusOr<HuggingFaceIndex> parsed = ParseHuggingFaceIndex(Mutate(whole, random));
    if (!parsed.ok()) continue;
    for (const auto& [name, path] : parsed->weight_map) ASSERT_EQ(path.find('/'), path.npos);
  }
}

}  // namespace
}  // namespace fsdp
