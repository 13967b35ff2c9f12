// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/token_data.h"

#include <fstream>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(TokenDataTest, ReadsLittleEndianUint16) {
  ASSERT_OK_AND_ASSIGN(const TokenData data,
                       TokenData::FromTokenFile(WriteFile("a.u16", std::string("\x01\x02\xff\x00", 4))));
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.at(0), 0x0201u);
  EXPECT_EQ(data.at(1), 0x00ffu);
}

TEST(TokenDataTest, ReadsUint32FromAFileSoNamed) {
  ASSERT_OK_AND_ASSIGN(const TokenData data,
                       TokenData::FromTokenFile(WriteFile("a.u32", std::string("\x01\x02\x03\x80", 4))));
  EXPECT_EQ(data.size(), 1);
  EXPECT_EQ(data.at(0), 0x80030201u);
}

TEST(TokenDataTest, JoinsTextFilesInTheOrderOfTheirNames) {
  WriteFile("text_b.txt", "cd");
  WriteFile("text_a.txt", "ab");
  ASSERT_OK_AND_ASSIGN(const TokenData data, TokenData::FromTextFiles(testing::TempDir() + "/text_*.txt"));
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(std::string({static_cast<char>(data.at(0)), static_cast<char>(data.at(3))}), "ad");
}

TEST(TokenDataTest, SampleStartsAtIndexTimesLengthModuloTheRest) {
  ASSERT_OK_AND_ASSIGN(const TokenData data, TokenData::FromTextFiles(WriteFile("ten.txt", "0123456789")));
  std::vector<int32_t> tokens(4), targets(4);
  data.CopySample(1, absl::MakeSpan(tokens), absl::MakeSpan(targets));  // 4 mod 6
  EXPECT_THAT(tokens, ElementsAre('4', '5', '6', '7'));
  EXPECT_THAT(targets, ElementsAre('5', '6', '7', '8'));
  EXPECT_EQ(data.SampleStart(2, 4), 2);                 // 8 mod 6
  EXPECT_EQ(data.SampleStart(int64_t{1} << 62, 4), 4);  // 2^64 mod 6, beyond 64 bits
}

TEST(TokenDataTest, RefusesHalfATokenAndAnEmptyFile) {
  EXPECT_THAT(TokenData::FromTokenFile(WriteFile("odd.u16", "abc")),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("odd.u16"), HasSubstr("has 3 bytes"))));
  EXPECT_THAT(TokenData::FromTokenFile(WriteFile("none.u16", "")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 0 bytes")));
  EXPECT_THAT(TokenData::FromTextFiles(WriteFile("none.txt", "")), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TokenDataTest, NamesTheFileThatIsMissing) {
  EXPECT_THAT(TokenData::FromTokenFile("no/such.u16"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such.u16")));
  EXPECT_THAT(TokenData::FromTextFiles("no/such/*.txt"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no file matches")));
}

TEST(TokenDataTest, AsksForMoreTokensThanASampleHas) {
  ASSERT_OK_AND_ASSIGN(const TokenData data, TokenData::FromTextFiles(WriteFile("four.txt", "0123")));
  EXPECT_OK(data.CheckLength(3));
  EXPECT_THAT(data.CheckLength(4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 4 tokens, expected more than seq_len=4")));
}

TEST(TokenDataTest, NamesATokenBeyondTheVocabularyAndItsPlace) {
  ASSERT_OK_AND_ASSIGN(const TokenData data, TokenData::FromTokenFile(WriteFile(
                                                 "vocabulary.u16", std::string("\x00\x00\x01\x01\x02\x00", 6))));
  EXPECT_OK(data.CheckVocabulary(258, {0, 3}));
  EXPECT_OK(data.CheckVocabulary(257, {2, 3}));
  EXPECT_THAT(data.CheckVocabulary(257, {0, 3}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("token 257 at position 1 of 3 is beyond the vocabulary of 257")));
}

}  // namespace
}  // namespace fsdp
