// SPDX-License-Identifier: Apache-2.0
//
// Compiles the header and the examples with C and Fortran compilers in their strictest modes, and runs the examples on
// a model.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr char kFolder[] = "checkpoint/c_api";
constexpr char kModel[] = "checkpoint/testdata/hf_sharded";

// Compiles `source`, of this folder, with `command`; returns the program's path, or "" if the compiler is not
// installed.
std::string Compiled(std::vector<std::string> command, const std::string& source) {
  const std::string program = absl::StrCat(testing::TempDir(), "/", source, ".program");
  const std::string folder = std::filesystem::absolute(kFolder);
  const std::string compiler = command[0];
#if defined(__SANITIZE_ADDRESS__)
  // The library needs the sanitizer's runtime, which must be part of the program; so the examples are tested with it
  // too.
  command.emplace_back("-fsanitize=address,undefined");
#endif
  for (const std::string& argument :
       {absl::StrCat(folder, "/", source), absl::StrCat("-I", folder), absl::StrCat(folder, "/libfsdp_checkpoint.so"),
        absl::StrCat("-Wl,-rpath,", folder), std::string("-o"), program}) {
    command.push_back(argument);
  }
  const absl::StatusOr<ProgramResult> result = RunProgram(command, absl::Seconds(120));
  if (absl::IsNotFound(result.status())) return "";
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result.ok() ? result->exit_status : -1, 0) << compiler << ": " << (result.ok() ? result->output : "");
  return program;
}

ProgramResult Ran(const std::vector<std::string>& command) {
  const absl::StatusOr<ProgramResult> result = RunProgram(command, absl::Seconds(120));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(ProgramResult{-1, "", "", 0});
}

TEST(CCompilersTest, AProgramInC99ReadsAModel) {
  const std::string program = Compiled({"cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"}, "example.c");
  if (program.empty()) GTEST_SKIP() << "SKIPPED: no compiler of C (cc) is installed";
  const ProgramResult result = Ran({program, kModel});
  EXPECT_EQ(result.exit_status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("transformer.ln_f.weight float32 [48] mean 1.0028\n"));
  const ProgramResult missing = Ran({program, "no/model"});
  EXPECT_EQ(missing.exit_status, 1);
  EXPECT_THAT(missing.output, HasSubstr("no/model"));
}

TEST(CCompilersTest, AProgramInFortranReadsAWeight) {
  const std::string program = Compiled(
      {"gfortran", "-std=f2018", "-Wall", "-Wextra", "-Werror", absl::StrCat("-J", testing::TempDir())}, "example.f90");
  if (program.empty()) GTEST_SKIP() << "SKIPPED: no compiler of Fortran (gfortran) is installed";
  const ProgramResult result = Ran({program, kModel, "model/transformer.wpe.weight"});
  EXPECT_EQ(result.exit_status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("shape 48 64\n"));
  const ProgramResult missing = Ran({program, kModel, "model/nobody"});
  EXPECT_EQ(missing.exit_status, 1);
  EXPECT_THAT(missing.output, HasSubstr("has no model/nobody"));
}

TEST(CCompilersTest, TheHeaderIsACompleteFileOfCAndOfCPlusPlus) {
  for (const std::vector<std::string>& compiler :
       {std::vector<std::string>{"cc", "-std=c99", "-x", "c"}, {"c++", "-std=c++98", "-x", "c++"}}) {
    std::vector<std::string> command = compiler;
    for (const char* option : {"-Wall", "-Wextra", "-Werror", "-fsyntax-only", "checkpoint/c_api/fsdp_checkpoint.h"}) {
      command.emplace_back(option);
    }
    const absl::StatusOr<ProgramResult> result = RunProgram(command, absl::Seconds(60));
    if (absl::IsNotFound(result.status())) GTEST_SKIP() << "SKIPPED: " << compiler[0] << " is not installed";
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->exit_status, 0) << result->output;
  }
}

}  // namespace
}  // namespace fsdp
