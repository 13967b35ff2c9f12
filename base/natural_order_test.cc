// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/natural_order.h"

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(NaturalOrderTest, NumbersAreOrderedByTheirValues) {
  EXPECT_TRUE(IsNaturallyBefore("h.2.attn", "h.10.attn"));
  EXPECT_FALSE(IsNaturallyBefore("h.10.attn", "h.2.attn"));
  EXPECT_TRUE(IsNaturallyBefore("h.09", "h.10"));
  EXPECT_TRUE(IsNaturallyBefore("99999999999999999999998", "99999999999999999999999"));
  EXPECT_TRUE(IsNaturallyBefore("h", "h.0"));
  EXPECT_TRUE(IsNaturallyBefore("", "a"));
  EXPECT_FALSE(IsNaturallyBefore("a", "a"));
}

// Names that only differ in leading zeros are two names, in one order.
TEST(NaturalOrderTest, NoTwoNamesAreEqual) {
  EXPECT_NE(IsNaturallyBefore("h.01", "h.1"), IsNaturallyBefore("h.1", "h.01"));
}

}  // namespace
}  // namespace fsdp
