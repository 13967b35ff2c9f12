// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/aligned_block.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = int64_t{4} << 20;

TEST(AlignedBlockTest, IsAlignedAsDirectIoWantsIt) {
  for (const int64_t nbytes : {int64_t{1}, int64_t{4096}, int64_t{5000}, kBlock, kBlock + 8192}) {
    const AlignedBlock block = NewAlignedBlock(nbytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 4096, 0u);
    std::memset(block.get(), 1, nbytes);
  }
}

TEST(AlignedBlockTest, ABlockThatIsFreedIsGivenToWhoAsksNextForAboutThatSize) {
  const auto address = [](const AlignedBlock& block) { return reinterpret_cast<uintptr_t>(block.get()); };
  const uintptr_t first = address(NewAlignedBlock(kBlock));
  const AlignedBlock other = NewAlignedBlock(kBlock / 2);
  const AlignedBlock same = NewAlignedBlock(kBlock + 8192);
  EXPECT_EQ(address(same), first);
  EXPECT_NE(address(other), first);
  std::memset(same.get(), 1, kBlock + 8192);
}

TEST(AlignedBlockTest, BlocksInUseAreDistinctHoweverManyWereKept) {
  for (int round = 0; round < 2; ++round) {
    std::vector<AlignedBlock> blocks;
    for (int i = 0; i < 20; ++i) {
      blocks.push_back(NewAlignedBlock(kBlock));
      blocks.back()[0] = std::byte(i);
    }
    for (int i = 0; i < 20; ++i) EXPECT_EQ(blocks[i][0], std::byte(i));
  }
}

}  // namespace
}  // namespace fsdp
