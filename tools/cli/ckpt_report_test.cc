// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/ckpt_report.h"

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(SuggestForceTest, AnOutputThatExistsIsReportedWithTheFlagThatReplacesIt) {
  EXPECT_EQ(SuggestForce(absl::AlreadyExistsError("a/b exists and is not to be overwritten"), "a/b").message(),
            "a/b exists and is not to be overwritten; --force replaces it");
  // A name in the working directory, as the library spells it.
  EXPECT_EQ(SuggestForce(absl::AlreadyExistsError("./copy exists"), "copy").message(),
            "copy exists; --force replaces it");
  EXPECT_EQ(SuggestForce(absl::AlreadyExistsError("./copy exists"), "./copy").message(),
            "./copy exists; --force replaces it");
}

TEST(SuggestForceTest, NoOtherErrorIsSaidToPassByForce) {
  for (const absl::Status& status : {absl::AlreadyExistsError(".copy.new exists, and was not left by a write"),
                                     absl::NotFoundError("copy exists"), absl::OkStatus()}) {
    EXPECT_EQ(SuggestForce(status, "copy"), status);
  }
}

}  // namespace
}  // namespace fsdp
