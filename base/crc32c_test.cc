// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

// RFC 3720, B.4, and the polynomial's check value.
TEST(Crc32cTest, HasTheChecksumsOfItsStandard) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

}  // namespace
}  // namespace fsdp
