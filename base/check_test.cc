// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/check.h"

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(CheckTest, TruthIsSilent) { Check(true, "never printed"); }

TEST(CheckDeathTest, FalsehoodNamesThePlaceAndAborts) {
  EXPECT_DEATH(Check(1 + 1 == 3, "sums are wrong"), "base/check_test.cc:[0-9]+: check failed: sums are wrong");
}

}  // namespace
}  // namespace fsdp
