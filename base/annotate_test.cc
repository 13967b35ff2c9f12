// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/annotate.h"

#include "absl/strings/cord.h"
#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(AnnotateTest, AnOkStatusStaysOk) { EXPECT_OK(Annotate(absl::OkStatus(), "file x")); }

TEST(AnnotateTest, ThePlaceStandsBeforeTheMessage) {
  EXPECT_THAT(Annotate(absl::NotFoundError("does not exist"), "file x"),
              StatusIs(absl::StatusCode::kNotFound, "file x: does not exist"));
}

TEST(AnnotateTest, PayloadsAreKept) {
  absl::Status status = absl::DataLossError("damaged");
  status.SetPayload("url", absl::Cord("payload"));
  EXPECT_EQ(Annotate(status, "file x").GetPayload("url"), absl::Cord("payload"));
}

TEST(AnnotateTest, AnotherMessageKeepsCodeAndPayloads) {
  absl::Status status = absl::DataLossError("damaged");
  status.SetPayload("url", absl::Cord("payload"));
  const absl::Status other = WithMessage(status, "file x is damaged");
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kDataLoss, "file x is damaged"));
  EXPECT_EQ(other.GetPayload("url"), absl::Cord("payload"));
}

}  // namespace
}  // namespace fsdp
