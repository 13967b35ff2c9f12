// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/parity/parity_code.h"

#include <algorithm>
#include <random>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr int64_t kBytes = 1000;  // not a multiple of a vector's size

// Data runs of deterministic bytes, and their parity runs.
std::vector<Bytes> Encoded(const ParityCode& code) {
  std::minstd_rand random(7);
  std::vector<Bytes> runs(code.data() + code.parity(), Bytes(kBytes));
  std::vector<const std::byte*> data;
  std::vector<std::byte*> parity;
  for (int i = 0; i < code.data(); ++i) {
    for (std::byte& b : runs[i]) b = static_cast<std::byte>(random());
    data.push_back(runs[i].data());
  }
  for (int i = code.data(); i < code.data() + code.parity(); ++i) parity.push_back(runs[i].data());
  code.Encode(data, parity, kBytes);
  return runs;
}

void ExpectDecodes(const ParityCode& code, const std::vector<Bytes>& runs, const std::vector<int>& lost) {
  ASSERT_OK_AND_ASSIGN(const ParityCode::Decoder decoder, code.NewDecoder(lost));
  std::vector<const std::byte*> present;
  for (const int run : decoder.present()) present.push_back(runs[run].data());
  std::vector<Bytes> made(lost.size(), Bytes(kBytes));
  std::vector<std::byte*> out;
  for (Bytes& run : made) out.push_back(run.data());
  decoder.Decode(present, out, kBytes);
  for (size_t i = 0; i < lost.size(); ++i) EXPECT_EQ(made[i], runs[lost[i]]) << "run " << lost[i];
}

TEST(ParityCodeTest, AnyTwoOfSevenRunsAreRebuilt) {
  ASSERT_OK_AND_ASSIGN(const ParityCode code, ParityCode::Create(5, 2));
  const std::vector<Bytes> runs = Encoded(code);
  for (int a = 0; a < 7; ++a) {
    ExpectDecodes(code, runs, {a});
    for (int b = a + 1; b < 7; ++b) ExpectDecodes(code, runs, {a, b});
  }
  ExpectDecodes(code, runs, {});
}

TEST(ParityCodeTest, TheLargestCodeWorks) {
  ASSERT_OK_AND_ASSIGN(const ParityCode code, ParityCode::Create(250, 5));
  ExpectDecodes(code, Encoded(code), {0, 17, 100, 249, 251});
}

TEST(ParityCodeTest, OneParityRunOfOneIsACopyUpToAFactor) {
  ASSERT_OK_AND_ASSIGN(const ParityCode code, ParityCode::Create(1, 1));
  ExpectDecodes(code, Encoded(code), {0});
}

TEST(ParityCodeTest, MoreLossesThanParityAreRefused) {
  ASSERT_OK_AND_ASSIGN(const ParityCode code, ParityCode::Create(5, 2));
  EXPECT_THAT(code.NewDecoder({0, 1, 6}).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("3 of 7 files are lost, and parity makes up for 2")));
}

TEST(ParityCodeTest, SizesOutsideTheFieldAreRefused) {
  EXPECT_THAT(ParityCode::Create(254, 2).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parity of 2 files over 254")));
  EXPECT_THAT(ParityCode::Create(0, 1).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("over 0")));
  EXPECT_THAT(ParityCode::Create(3, 0).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 0 files")));
}

}  // namespace
}  // namespace fsdp
