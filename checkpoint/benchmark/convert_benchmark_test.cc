// SPDX-License-Identifier: Apache-2.0
//
// The benchmark has a row for every direction, on a small model. The speed is not tested.
#include <array>
#include <cstdio>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(ConvertBenchmarkTest, HasARowForEveryDirection) {
  const std::string command =
      absl::StrCat("checkpoint/benchmark/convert_benchmark --bytes=3000000 --repetitions=1 --python= --directory=",
                   testing::TempDir(), "/convert_benchmark 2>&1");
  std::FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 256> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) output += piece.data();
  EXPECT_EQ(pclose(pipe), 0) << output;
  for (const std::string from : {"safetensors", "torch", "dcp", "hdf5", "sharded", "diff", "inspect", "verify"}) {
    for (const std::string to : {"safetensors", "torch", "dcp", "hdf5", "sharded"}) {
      const std::regex row(absl::StrCat(from, "( to)? ", to, " +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+"));
      EXPECT_EQ(std::regex_search(output, row), from != to) << from << " to " << to << "\n" << output;
    }
  }
}

}  // namespace
}  // namespace fsdp
