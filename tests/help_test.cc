// SPDX-License-Identifier: Apache-2.0
//
// Every program prints its purpose for --help, and exits with success.
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class HelpTest : public testing::TestWithParam<const char*> {};

TEST_P(HelpTest, EveryProgramPrintsItsUsage) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile(GetParam()));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start({program, "--help"}));
  ASSERT_THAT(child->Wait(absl::Seconds(20)), IsOkAndHolds(0)) << child->output();
  // "benchmark [--..." is Google Benchmark's.
  EXPECT_THAT(child->output(), AnyOf(StartsWith("usage: "), StartsWith("benchmark [--")));
  EXPECT_THAT(child->output(), Not(HasSubstr("WARNING")));
}

TEST_P(HelpTest, EveryProgramRefusesAnUnknownFlag) {
  ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile(GetParam()));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start({program, "--no_such_flag=1"}));
  EXPECT_THAT(child->Wait(absl::Seconds(20)), IsOkAndHolds(Not(0))) << child->output();
  EXPECT_THAT(child->output(), HasSubstr("no_such_flag"));
}

TEST(VersionTest, IsThatOfTheModule) {
  for (const std::string name : {"ckpt", "launch"}) {
    ASSERT_OK_AND_ASSIGN(const std::string program, FindRunfile("tools/" + name));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ChildProcess> child, ChildProcess::Start({program, "--version"}));
    ASSERT_THAT(child->Wait(absl::Seconds(20)), IsOkAndHolds(0)) << child->output();
    EXPECT_THAT(child->output(), MatchesRegex(name + " [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, HelpTest,
    testing::Values("checkpoint/benchmark/checkpoint_benchmark", "checkpoint/benchmark/planning_benchmark",
                    "checkpoint/benchmark/convert_benchmark", "collectives/conformance/collectives_benchmark",
                    "train/async_save_benchmark", "train/bare_benchmark", "examples/quickstart", "train/train_gpt",
                    "examples/lora", "examples/two_layer_network", "fsdp/step_benchmark", "models/gpt2_benchmark",
                    "optim/adamw_benchmark", "tensor/convert_benchmark", "tensor/host_stream_benchmark", "tools/ckpt",
                    "tools/launch", "tools/report", "tools/simulate"),
    [](const auto& info) {
      std::string name = info.param;
      for (char& c : name) c = c == '/' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace fsdp
