// SPDX-License-Identifier: Apache-2.0
//
// cuda_kernels_benchmark on the emulator: it must not fail for the first time on a machine with a GPU. Does not test
// its times.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// The lines of JSON that the program prints with `flags` and --tiny.
std::vector<nlohmann::json> LinesOf(const std::vector<std::string>& flags) {
  absl::StatusOr<std::string> program = FindRunfile("optim/benchmark/cuda_kernels_benchmark_emulated");
  EXPECT_OK(program);
  std::vector<std::string> command = {*program, "--tiny", "--rounds=1"};
  command.insert(command.end(), flags.begin(), flags.end());
  absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Start(command);
  EXPECT_OK(child);
  EXPECT_THAT((*child)->Wait(absl::Minutes(4)), IsOkAndHolds(0)) << (*child)->output();
  std::vector<nlohmann::json> lines;
  for (const absl::string_view line : absl::StrSplit((*child)->output(), '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  return lines;
}

TEST(KernelsBenchmarkTest, MeasuresEveryKernelOnce) {
  const std::vector<nlohmann::json> lines = LinesOf({"--dtypes=bfloat16,float32"});
  std::set<std::string> kernels, keys;
  for (const nlohmann::json& line : lines) {
    if (!line.contains("kernel")) continue;
    const std::string kernel = line["kernel"];
    kernels.insert(kernel);
    EXPECT_TRUE(
        keys.insert(absl::StrCat(kernel, line["shape"].get<std::string>(), line["dtype"].get<std::string>())).second)
        << line;
    EXPECT_GT(line["microseconds"], 0) << line;
    EXPECT_NE(line.contains("of_copy"), line.contains("tflop_per_s")) << line;
  }
  EXPECT_THAT(kernels, IsSupersetOf({"add",
                                     "gelu",
                                     "gelu backward",
                                     "swiglu",
                                     "swiglu backward",
                                     "bias backward",
                                     "rotation",
                                     "rotation backward",
                                     "layer norm",
                                     "layer norm backward",
                                     "rms norm",
                                     "rms norm backward",
                                     "add and layer norm",
                                     "add and layer norm backward",
                                     "add and rms norm",
                                     "add and rms norm backward",
                                     "embedding",
                                     "embedding backward",
                                     "cross entropy",
                                     "cross entropy backward",
                                     "cross entropy with gradient",
                                     "cast to float32 and divide",
                                     "cast of float32",
                                     "accumulate",
                                     "intervals",
                                     "squared norm",
                                     "check finite",
                                     "adamw",
                                     "adamw, scaled, with bfloat16 copy",
                                     "product",
                                     "product input gradient",
                                     "product weight gradient",
                                     "head",
                                     "head input gradient",
                                     "head weight gradient",
                                     "attention eager",
                                     "attention eager backward"}));
  EXPECT_EQ(lines.back()["measured"], static_cast<int>(keys.size()));
  EXPECT_EQ(lines.back()["no_time_for"], 0);
}

TEST(KernelsBenchmarkTest, TheFilterLooksAtNameAndShape) {
  const std::vector<nlohmann::json> lines = LinesOf({"--filter=backward, llama"});
  ASSERT_GT(lines.size(), 2u);
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    EXPECT_THAT(lines[i]["kernel"].get<std::string>(), HasSubstr("backward"));
    EXPECT_THAT(lines[i]["shape"].get<std::string>(), HasSubstr("llama"));
  }
}

TEST(KernelsBenchmarkTest, SaysForHowManyKernelsThereWasNoTime) {
  const std::vector<nlohmann::json> lines = LinesOf({"--seconds=1e-9"});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["measured"], 0);
  EXPECT_GT(lines[0]["no_time_for"], 50);
}

}  // namespace
}  // namespace fsdp
