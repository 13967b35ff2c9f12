// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/streaming_copy.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(StreamingCopyTest, CopiesEveryLengthToEveryAddressAndNothingElse) {
  std::vector<unsigned char> from(700);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 37 + 1);
  for (size_t to_shift = 0; to_shift < 70; ++to_shift) {
    for (const size_t from_shift : {0, 1, 16, 33}) {
      for (const size_t nbytes : {0, 1, 15, 63, 64, 65, 127, 128, 300, 513}) {
        std::vector<unsigned char> to(700, 0xEE);
        std::vector<unsigned char> expected = to;
        std::memcpy(expected.data() + to_shift, from.data() + from_shift, nbytes);
        StreamingCopy(to.data() + to_shift, from.data() + from_shift, nbytes);
        ASSERT_EQ(to, expected) << nbytes << " bytes from " << from_shift << " to " << to_shift;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
