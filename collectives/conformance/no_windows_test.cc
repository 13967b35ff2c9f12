// SPDX-License-Identifier: Apache-2.0
//
// Where NCCL makes no windows, as some releases do on one GPU, their suite is skipped with the reason.
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/cuda/fake_nccl.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST(NoWindowsTest, TheSuiteCannotRunAndSaysWhy) {
  SetFakeNcclFaults({.no_windows = true});
  EXPECT_THAT(CanRun({.backend = "nccl_windows", .size = 1}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("symmetric window: NCCL made none")));
  SetFakeNcclFaults({.version = 22705});
  EXPECT_THAT(
      CanRun({.backend = "nccl_copy_engines", .size = 1}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("all-gathers by copy engines: NCCL 2.27.5 is loaded")));
  SetFakeNcclFaults({});
  EXPECT_OK(CanRun({.backend = "nccl_windows", .size = 2}));
}

}  // namespace
}  // namespace fsdp
