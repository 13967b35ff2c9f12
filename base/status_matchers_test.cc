// SPDX-License-Identifier: Apache-2.0

#include "fsdp/base/status_matchers.h"

#include <memory>
#include <string>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<int> Seven() { return 7; }
absl::StatusOr<int> Lost() { return absl::DataLossError("block 3 is wrong"); }

TEST(StatusMatchersTest, OkMatchesStatusAndStatusOr) {
  EXPECT_OK(absl::OkStatus());
  EXPECT_OK(Seven());
  EXPECT_THAT(Lost(), Not(IsOk()));
}

TEST(StatusMatchersTest, StatusIsComparesCodeAndMessage) {
  EXPECT_THAT(Lost(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Lost(), StatusIs(absl::StatusCode::kDataLoss, "block 3 is wrong"));
  EXPECT_THAT(Lost().status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("block 3")));
  EXPECT_THAT(Lost(), Not(StatusIs(absl::StatusCode::kNotFound, HasSubstr("block 3"))));
  EXPECT_THAT(Lost(), Not(StatusIs(absl::StatusCode::kDataLoss, HasSubstr("block 4"))));
}

TEST(StatusMatchersTest, IsOkAndHoldsComparesTheValue) {
  EXPECT_THAT(Seven(), IsOkAndHolds(7));
  EXPECT_THAT(Seven(), IsOkAndHolds(testing::Gt(6)));
  EXPECT_THAT(Seven(), Not(IsOkAndHolds(8)));
  EXPECT_THAT(Lost(), Not(IsOkAndHolds(7)));
}

TEST(StatusMatchersTest, AssertOkAndAssignMovesTheValue) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<int> p, absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(5)));
  EXPECT_EQ(*p, 5);
  ASSERT_OK_AND_ASSIGN(*p, Seven());
  EXPECT_EQ(*p, 7);
}

TEST(StatusMatchersTest, FailureShowsTheStatus) {
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(Lost()), "DATA_LOSS: block 3 is wrong");
}

absl::Status AddOne(absl::StatusOr<int> in, int* out) {
  FSDP_ASSIGN_OR_RETURN(const int value, in);
  FSDP_RETURN_IF_ERROR(value < 0 ? absl::OutOfRangeError("negative") : absl::OkStatus());
  *out = value + 1;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, FirstErrorLeavesTheFunction) {
  int out = 0;
  EXPECT_OK(AddOne(Seven(), &out));
  EXPECT_EQ(out, 8);
  EXPECT_THAT(AddOne(Lost(), &out), StatusIs(absl::StatusCode::kDataLoss, "block 3 is wrong"));
  EXPECT_THAT(AddOne(-1, &out), StatusIs(absl::StatusCode::kOutOfRange, "negative"));
  EXPECT_EQ(out, 8);
}

}  // namespace
}  // namespace fsdp
