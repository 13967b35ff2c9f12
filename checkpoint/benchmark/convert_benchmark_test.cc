// SPDX-License-Identifier: Apache-2.0
//
// The benchmark has a row for every direction, on a small model. The speed is not tested.
#include <array>
#include <cstdio>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The output of one repetition in a new directory.
std::string OutputOf(const std::string& name, const std::string& flags) {
  const std::string command =
      absl::StrCat("checkpoint/benchmark/convert_benchmark --repetitions=1 --python= --directory=", testing::TempDir(),
                   "/", name, " ", flags, " 2>&1");
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string output;
  std::array<char, 256> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) output += piece.data();
  EXPECT_EQ(pclose(pipe), 0) << output;
  return output;
}

TEST(ConvertBenchmarkTest, HasARowForEveryDirection) {
  const std::string output = OutputOf("every", "--bytes=3000000");
  const std::vector<std::string> forms = {"safetensors", "torch", "dcp",       "hdf5",    "sharded",
                                          "npz",         "gguf",  "deepspeed", "megatron"};
  std::vector<std::string> sources = forms;
  sources.insert(sources.end(), {"diff", "inspect", "verify"});
  for (const std::string& from : sources) {
    for (const std::string& to : forms) {
      const std::regex row(absl::StrCat(from, "( to)? ", to, " +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+"));
      EXPECT_EQ(std::regex_search(output, row), from != to) << from << " to " << to << "\n" << output;
    }
  }
}

TEST(ConvertBenchmarkTest, MeasuresAModelOfManyTensors) {
  const std::string output = OutputOf("many", "--bytes=300000 --tensors=500 --rows=torch");
  EXPECT_TRUE(std::regex_search(output, std::regex("torch to hdf5 +[0-9.]+"))) << output;
}

}  // namespace
}  // namespace fsdp
