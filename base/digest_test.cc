// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/digest.h"

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

std::string PatternOf(size_t nbytes) {
  std::string bytes(nbytes, '\0');
  uint32_t x = 1;
  for (char& c : bytes) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return bytes;
}

TEST(DigestTest, MatchesXxh128Sum) {
  // As xxh128sum prints them.
  EXPECT_EQ(DigestOf("").ToHex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(DigestOf("abc").ToHex(), "06b05ab6733a618578af5f94892f3950");
}

TEST(DigestTest, AnEmptySpanIsTheEmptyDigest) {
  EXPECT_EQ(DigestOf(absl::Span<const std::byte>()), DigestOf(""));
  EXPECT_EQ(DigestBuilder().Finish(), DigestOf(""));
}

TEST(DigestTest, HexRoundTrips) {
  const Digest digest = {0x0123456789abcdef, 0x00000000000000ff};
  EXPECT_EQ(digest.ToHex(), "0123456789abcdef00000000000000ff");
  EXPECT_THAT(ParseDigest(digest.ToHex()), IsOkAndHolds(digest));
}

TEST(DigestTest, ParseRefusesWhatToHexDoesNotWrite) {
  for (const std::string bad :
       {"", "0123456789abcdef", "0123456789ABCDEF0123456789abcdef", "0123456789abcdef0123456789abcde ",
        "0x23456789abcdef0123456789abcdef0", "0123456789abcdef0123456789abcdef0"}) {
    EXPECT_THAT(ParseDigest(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "digest \"" + bad + "\" is not 32 lower-case hexadecimal digits"));
  }
}

TEST(DigestBuilderTest, CutsDoNotMatter) {
  const std::string bytes = PatternOf(100'003);
  for (size_t piece : {1, 7, 64, 1000, 65536, 200'000}) {
    DigestBuilder builder;
    for (size_t at = 0; at < bytes.size(); at += piece) builder.Update(std::string_view(bytes).substr(at, piece));
    EXPECT_EQ(builder.Finish(), DigestOf(bytes)) << piece;
  }
}

TEST(DigestBuilderTest, FinishCanBeCalledBetweenUpdates) {
  DigestBuilder builder;
  builder.Update("ab");
  EXPECT_EQ(builder.Finish(), DigestOf("ab"));
  EXPECT_EQ(builder.Finish(), DigestOf("ab"));
  builder.Update(std::string_view());
  builder.Update("c");
  EXPECT_EQ(builder.Finish(), DigestOf("abc"));
}

TEST(DigestBuilderTest, ResetForgets) {
  DigestBuilder builder;
  builder.Update("ab");
  builder.Reset();
  builder.Update("abc");
  DigestBuilder moved = std::move(builder);
  EXPECT_EQ(moved.Finish(), DigestOf("abc"));
}

TEST(CopyAndDigestTest, CopiesAndDigestsAcrossTiles) {
  // Around one, and several, tiles of 256 KiB.
  for (size_t nbytes : {size_t{0}, size_t{1}, size_t{262'143}, size_t{262'144}, size_t{262'145}, size_t{1'000'003}}) {
    const std::string source = PatternOf(nbytes);
    std::string destination(nbytes + 1, 'x');
    DigestBuilder builder;
    CopyAndDigest(destination.data(), source.data(), nbytes, builder);
    EXPECT_EQ(builder.Finish(), DigestOf(source));
    EXPECT_EQ(destination.substr(0, nbytes), source);
    EXPECT_EQ(destination.back(), 'x');
  }
}

TEST(DigestTest, EveryBitCounts) {
  std::string bytes = PatternOf(257);
  const Digest whole = DigestOf(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_NE(DigestOf(bytes), whole);
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace fsdp
