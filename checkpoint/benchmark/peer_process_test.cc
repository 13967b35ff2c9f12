// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/benchmark/peer_process.h"

#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(PeerProcessTest, AnswersAreSecondsOrTheReasonWhyThereAreNone) {
  const std::string script = "read a; echo 1.5; read a; echo \"no: no library for $a\"; read a; exit 3";
  ASSERT_OK_AND_ASSIGN(const auto peer, PeerProcess::Start({"sh", "-c", script}));
  EXPECT_THAT(peer->Ask("first"), IsOkAndHolds(1.5));
  EXPECT_THAT(peer->Ask("second"), StatusIs(absl::StatusCode::kUnavailable, "no library for second"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(peer->Ask("third"),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the program ended when asked for third")));
  }
}

TEST(PeerProcessTest, AProgramThatIsNotThereIsNamed) {
  EXPECT_THAT(PeerProcess::Start({"/no/such/python"}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("program \"/no/such/python\" does not exist")));
}

}  // namespace
}  // namespace fsdp
