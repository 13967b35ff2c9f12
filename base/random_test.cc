// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/random.h"

#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;

TEST(PhiloxTest, GivesThePapersKnownAnswers) {
  // From kat_vectors of the authors' Random123.
  EXPECT_THAT(Philox(0, 0).Block(0), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox(~uint64_t{0}, ~uint64_t{0}).Block(~uint64_t{0}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox(0x299f31d0a4093822, 0x0370734413198a2e).Block(0x85a308d3243f6a88),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(RandomTest, AValueDependsOnItsIndexAlone) {
  const Philox philox(42, 7);
  std::vector<float> whole(1000);
  for (auto fill : {FillUniform, FillNormal}) {
    fill(philox, 0, absl::MakeSpan(whole));
    for (size_t first : {0, 1, 2, 3, 4, 5, 498}) {
      for (size_t n : {0, 1, 2, 3, 4, 5, 6, 400}) {
        std::vector<float> part(n);
        fill(philox, first, absl::MakeSpan(part));
        EXPECT_EQ(part, std::vector<float>(whole.begin() + first, whole.begin() + first + n));
      }
    }
  }
}

TEST(RandomTest, BitsAreTheNumbersOfTheBlocks) {
  const Philox philox(42, 7);
  for (const uint64_t first : {0, 1, 3, 4, 29}) {
    for (const size_t n : {0, 1, 5, 64, 333}) {
      std::vector<uint32_t> numbers(n);
      FillBits(philox, first, absl::MakeSpan(numbers));
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(numbers[i], philox.Block((first + i) / 4)[(first + i) % 4]) << first << " + " << i;
      }
    }
  }
}

TEST(RandomTest, SeedsAndSequencesDiffer) {
  std::set<float> values;
  for (uint64_t seed : {0, 1, 2}) {
    for (uint64_t sequence : {0, 1, 2}) {
      float value;
      FillNormal(Philox(seed, sequence), 5, absl::MakeSpan(&value, 1));
      values.insert(value);
    }
  }
  EXPECT_EQ(values.size(), 9);
}

TEST(RandomTest, UniformsFillTheUnitInterval) {
  std::vector<float> values(1 << 20);
  FillUniform(Philox(1), 0, absl::MakeSpan(values));
  double sum = 0;
  double squares = 0;
  for (float v : values) {
    ASSERT_GE(v, 0.0f);
    ASSERT_LT(v, 1.0f);
    sum += v;
    squares += double{v} * v;
  }
  const double mean = sum / values.size();
  EXPECT_NEAR(mean, 0.5, 0.002);
  EXPECT_NEAR(squares / values.size() - mean * mean, 1.0 / 12, 0.001);
}

TEST(RandomTest, NormalsHaveTheNormalsMoments) {
  std::vector<float> values(1 << 20);
  FillNormal(Philox(1), 0, absl::MakeSpan(values));
  double moments[5] = {};
  int beyond_two = 0;
  for (float v : values) {
    ASSERT_TRUE(std::isfinite(v));
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(double{v}, k) / values.size();
    beyond_two += std::abs(v) > 2;
  }
  EXPECT_NEAR(moments[1], 0, 0.005);
  EXPECT_NEAR(moments[2], 1, 0.01);
  EXPECT_NEAR(moments[3], 0, 0.02);
  EXPECT_NEAR(moments[4], 3, 0.05);
  EXPECT_NEAR(beyond_two / double(values.size()), 0.0455, 0.001);
}

TEST(RandomTest, NormalsAreBoxMullersToTheLastBits) {
  const Philox philox(9, 3);
  std::vector<float> values(4000);
  FillNormal(philox, 0, absl::MakeSpan(values));
  for (size_t i = 0; i < values.size(); i += 2) {
    const std::array<uint32_t, 4> block = philox.Block(i / 4);
    const double radius = std::sqrt(-2 * std::log((block[i % 4] + 0.5) / 4294967296.0));
    const double angle = 2 * M_PI * (block[i % 4 + 1] / 4294967296.0);
    EXPECT_NEAR(values[i], radius * std::cos(angle), 5e-7);
    EXPECT_NEAR(values[i + 1], radius * std::sin(angle), 5e-7);
  }
}

TEST(RandomTest, UniformsAreTheBlocksUpperBits) {
  const Philox philox(9, 3);
  std::vector<float> values(4000);
  FillUniform(philox, 0, absl::MakeSpan(values));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<float>(philox.Block(i / 4)[i % 4] >> 8) * 0x1p-24f);
  }
}

TEST(RandomTest, IndicesBeyond32BitsCount) {
  const Philox philox(9, (uint64_t{5} << 32) + 1);
  const uint64_t first = (uint64_t{1} << 34) - 40;  // blocks cross 2^32
  std::vector<float> values(80);
  FillUniform(philox, first, absl::MakeSpan(values));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t index = first + i;
    ASSERT_EQ(values[i], static_cast<float>(philox.Block(index / 4)[index % 4] >> 8) * 0x1p-24f);
  }
}

TEST(RandomTest, EveryTargetGivesTheSameBits) {
  std::vector<float> expected;
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET}) {
    if ((hwy::SupportedTargets() & target) == 0 && target != HWY_STATIC_TARGET) continue;
    hwy::GetChosenTarget().Update(target);
    std::vector<float> values(1 << 20);
    FillNormal(Philox(77), 2, absl::MakeSpan(values).first(1 << 19));
    FillUniform(Philox(77), 2, absl::MakeSpan(values).last(1 << 19));
    if (expected.empty()) expected = values;
    EXPECT_EQ(values, expected) << hwy::TargetName(target);
  }
  hwy::GetChosenTarget().DeInit();
}

// Saved runs started from these bits; a change here changes every new model.
TEST(RandomTest, TheBitsNeverChange) {
  std::vector<float> values(6);
  FillNormal(Philox(1234, 5678), 1'000'000'007, absl::MakeSpan(values));
  std::vector<uint32_t> bits;
  for (float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  EXPECT_THAT(bits, ElementsAre(3198139176, 1041254421, 3198257746, 3217435144, 1063295188, 3198614499));
}

}  // namespace
}  // namespace fsdp
