// SPDX-License-Identifier: Apache-2.0
//
// A program that depends on //checkpoint/native contains no reader or writer of foreign formats: neither their size nor
// their attack surface.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr char kProgram[] = "checkpoint/native/test_resume_program";

// Parts of the names of types and functions of checkpoint/foreign/, of conversion and of object stores.
constexpr const char* kForeign[] = {"Pickle",
                                    "ZipDirectory",
                                    "ZipLayout",
                                    "TorchState",
                                    "TorchSource",
                                    "TorchDriver",
                                    "DcpMetadata",
                                    "DcpSource",
                                    "DcpDriver",
                                    "Hdf5Listing",
                                    "Hdf5FileSource",
                                    "SafetensorsFile",
                                    "SafetensorsHeader",
                                    "SafetensorsDriver",
                                    "HuggingFace",
                                    "ConvertCheckpoint",
                                    "ObjectStore"};

std::string SymbolsOf(const std::string& program) {
  const absl::StatusOr<ProgramResult> nm =
      RunProgram({"nm", "--defined-only", "--demangle", program}, absl::Seconds(60));
  EXPECT_TRUE(nm.ok() && nm->exit_status == 0) << nm.status();
  return nm.ok() ? nm->output : "";
}

TEST(NativeSymbolsTest, AProgramThatSavesAndResumesLinksNoForeignFormat) {
  const std::string symbols = SymbolsOf(kProgram);
  for (const char* own : {"fsdp::LoadNativeCheckpoint(", "fsdp::SaveCheckpoint(", "fsdp::VerifyCheckpoint("}) {
    EXPECT_THAT(symbols, HasSubstr(own)) << "nm does not show what the program does use";
  }
  for (const absl::string_view line : absl::StrSplit(symbols, '\n')) {
    for (const char* foreign : kForeign) EXPECT_FALSE(absl::StrContains(line, foreign)) << line;
  }
}

// Each name above is in a program that opens any format: otherwise the test above would pass with misspelled names.
TEST(NativeSymbolsTest, AProgramForAnyFormatHasThemAll) {
  const std::string symbols = SymbolsOf("tools/ckpt");
  for (const char* foreign : kForeign) EXPECT_TRUE(absl::StrContains(symbols, foreign)) << foreign;
}

TEST(NativeSymbolsTest, TheProgramContinuesFromItsOwnCheckpoints) {
  const std::string root = NewTestDirectory();
  for (const char* line : {"step 1, element 0 is 1\n", "step 2, element 0 is 2\n", "step 3, element 0 is 3\n"}) {
    ASSERT_OK_AND_ASSIGN(const ProgramResult result, RunProgram({kProgram, root}, absl::Seconds(60)));
    EXPECT_EQ(result.exit_status, 0);
    EXPECT_EQ(result.output, line);
  }
}

}  // namespace
}  // namespace fsdp
