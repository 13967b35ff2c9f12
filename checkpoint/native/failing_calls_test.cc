// SPDX-License-Identifier: Apache-2.0
//
// Lets each system call of every action on files fail in turn, once or from then on, with EIO, as a disk or a network
// file system does, or with ESTALE, as an NFS client whose handle the server no longer knows. The action succeeds with
// the right result (some calls are only attempts), or its error names the cause, and the old or the new is there,
// whole.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/storage_actions_testutil.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Kind = SystemCallFaults::Kind;

class FailingCallsTest : public testing::TestWithParam<StorageAction> {
 protected:
  // Runs the action with this fault, checks the outcome, and returns its number of calls.
  int64_t Run(Kind kind, int64_t at, int error) {
    const std::string root = NewTestDirectory();
    EXPECT_OK(GetParam().prepare(root));
    SystemCallFaults::Begin(kind, at, error);
    const absl::Status acted = GetParam().act(root);
    const int64_t calls = SystemCallFaults::End();
    if (acted.ok()) {
      EXPECT_OK(GetParam().check(root));
    } else {
      EXPECT_THAT(std::string(acted.message()),
                  testing::AnyOf(testing::HasSubstr(std::strerror(error)), testing::HasSubstr(std::strerror(EIO))));
      EXPECT_OK(GetParam().after_error(root));
    }
    fs::remove_all(root);
    return calls;
  }
};

TEST_P(FailingCallsTest, SucceedOrNameTheCauseAndLeaveOldOrNew) {
  const bool all = std::getenv("EVERY_FAULT") != nullptr;  // without it at some calls, spread over all
  const int64_t calls = Run(Kind::kFail, 0, EIO);
  ASSERT_GT(calls, 10);
  const int64_t stride = all ? 1 : std::max<int64_t>(1, calls / 40);
  for (int64_t k = 1; k <= calls; k += stride) {
    // Neighbouring calls have different faults.
    for (int64_t fault = 0; fault < 4; ++fault) {
      if (!all && fault != k / stride % 4) continue;
      const Kind kind = fault % 2 == 0 ? Kind::kFail : Kind::kFailFrom;
      const int error = fault < 2 ? EIO : ESTALE;
      SCOPED_TRACE(absl::StrCat(std::strerror(error), kind == Kind::kFail ? " at call " : " from call ", k));
      Run(kind, k, error);
    }
  }
  std::printf("%s: %lld calls; faults injected so far: %lld\n", GetParam().name.c_str(), static_cast<long long>(calls),
              static_cast<long long>(SystemCallFaults::injected()));
}

INSTANTIATE_TEST_SUITE_P(Actions, FailingCallsTest, testing::ValuesIn(StorageActions()),
                         [](const testing::TestParamInfo<StorageAction>& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
