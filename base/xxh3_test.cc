// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/xxh3.h"

#include <xxhash.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

std::string Bytes(size_t nbytes) {
  std::string bytes(nbytes, '\0');
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<char>(i * i >> 5);
  return bytes;
}

Digest OfPieces(const Xxh3& xxh3, const char* bytes, size_t nbytes, size_t piece) {
  XXH3_state_t* const state = XXH3_createState();
  XXH3_128bits_reset(state);
  for (size_t at = 0; at < nbytes; at += piece) {
    EXPECT_TRUE(xxh3.update(state, bytes + at, std::min(piece, nbytes - at)));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return {hash.high64, hash.low64};
}

// XXH3 has separate code for up to 16, 128 and 240 bytes, and above that for stripes of 64 and blocks of 1,024 bytes.
TEST(Xxh3Test, EveryInstructionSetGivesTheLibrarysDigests) {
  const std::vector<Xxh3> all = SupportedXxh3();
  if (all.size() == 1) GTEST_SKIP() << "this processor has no other instruction set than the library's";
  const std::string bytes = Bytes(70'001);
  for (size_t nbytes = 0; nbytes < bytes.size(); nbytes += nbytes < 5'000 ? 1 : 997) {
    const char* const unaligned = bytes.data() + 1;
    const Digest digest = all.front().of(unaligned, nbytes);
    for (const Xxh3& xxh3 : all) {
      ASSERT_EQ(xxh3.of(unaligned, nbytes), digest) << xxh3.target << ", " << nbytes << " bytes";
      ASSERT_EQ(OfPieces(xxh3, unaligned, nbytes, 300), digest) << xxh3.target << ", " << nbytes << " bytes in pieces";
    }
  }
}

}  // namespace
}  // namespace fsdp
