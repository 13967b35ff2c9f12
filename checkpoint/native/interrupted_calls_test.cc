// SPDX-License-Identifier: Apache-2.0
//
// Interrupts each system call of every action on files by a signal, or makes it transfer less than requested: each
// action succeeds with the same bytes. system_call_test.cc tests the loop that handles this.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/storage_actions_testutil.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/system_call_faults.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Kind = SystemCallFaults::Kind;

class InterruptedCallsTest : public testing::TestWithParam<StorageAction> {
 protected:
  // Runs the action with this fault, checks that it succeeds, and returns its number of calls.
  int64_t Run(Kind kind, int64_t at) {
    const std::string root = NewTestDirectory();
    EXPECT_OK(GetParam().prepare(root));
    SystemCallFaults::Begin(kind, at);
    const absl::Status acted = GetParam().act(root);
    const int64_t calls = SystemCallFaults::End();
    EXPECT_OK(acted);
    EXPECT_OK(GetParam().check(root));
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string name = entry.path().filename();
      EXPECT_TRUE(name[0] != '.' || name == ".metadata") << entry.path() << " is left behind";
    }
    fs::remove_all(root);
    return calls;
  }
};

TEST_P(InterruptedCallsTest, GoesOnWhicheverCallItIs) {
  const bool all = std::getenv("EVERY_FAULT") != nullptr;  // without it at a few calls, spread over all
  for (const Kind kind : {Kind::kInterrupt, Kind::kCutShort}) {
    const int64_t calls = Run(kind, 0);
    EXPECT_GT(calls, 0);
    const int64_t stride = all ? 1 : std::max<int64_t>(1, calls / 5);
    for (int64_t k = 1; k <= calls; k += stride) {
      SCOPED_TRACE(absl::StrCat(kind == Kind::kInterrupt ? "interrupted" : "cut short", " at call ", k));
      Run(kind, k);
    }
    SCOPED_TRACE("every call");
    Run(kind, SystemCallFaults::kEvery);
    std::printf("%s: %lld calls to %s\n", GetParam().name.c_str(), static_cast<long long>(calls),
                kind == Kind::kInterrupt ? "interrupt" : "cut short");
  }
  std::printf("faults of system calls injected so far: %lld\n", static_cast<long long>(SystemCallFaults::injected()));
}

INSTANTIATE_TEST_SUITE_P(Actions, InterruptedCallsTest, testing::ValuesIn(StorageActions()),
                         [](const testing::TestParamInfo<StorageAction>& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp
