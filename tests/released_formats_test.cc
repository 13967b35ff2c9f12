// SPDX-License-Identifier: Apache-2.0
//
// The promise of docs/compatibility.md for the checkpoint format: this program reads, verifies and continues
// checkpoints that the first program of each version of the format wrote. testdata/formats/VERSION is never written
// again; tests/testdata/formats/README.md describes how it was made.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1);

// A copy of a folder of testdata/formats/, since verifying and training lock directories and make others.
std::string CopyOf(const std::string& name) {
  const absl::StatusOr<std::string> manifest = FindRunfile("tests/testdata/formats/" + name);
  EXPECT_OK(manifest.status());
  const std::filesystem::path source = std::filesystem::path(*manifest).parent_path();
  const std::string copy = NewDirectory() + "/copy";
  std::filesystem::copy(source, copy, std::filesystem::copy_options::recursive);
  return copy;
}

ProgramResult Ckpt(const Flags& arguments) {
  const absl::StatusOr<std::string> ckpt = FindRunfile("tools/ckpt");
  EXPECT_OK(ckpt.status());
  const absl::StatusOr<ProgramResult> result = RunProgram(Flags{*ckpt} + arguments, kLong);
  EXPECT_OK(result.status());
  return *result;
}

class FormatVersionTest : public testing::TestWithParam<const char*> {};

TEST_P(FormatVersionTest, EachKindVerifiesAndHasTheValuesThatWereSaved) {
  ASSERT_OK_AND_ASSIGN(const std::string saved, FindRunfile("checkpoint/testdata/all_dtypes.safetensors"));
  for (const std::string kind : {"full", "sharded", "local"}) {
    const std::string copy = CopyOf(std::string(GetParam()) + "/" + kind + "/manifest.json");
    const ProgramResult verified = Ckpt({"verify", copy});
    EXPECT_EQ(verified.exit_status, 0) << kind << ": " << verified.output;
    const ProgramResult compared = Ckpt({"diff", copy, saved});
    EXPECT_EQ(compared.exit_status, 0) << kind << ": " << compared.output;
  }
}

TEST_P(FormatVersionTest, ALostRankFileIsMadeAgainFromParity) {
  const std::string copy = CopyOf(std::string(GetParam()) + "/sharded/manifest.json");
  ASSERT_TRUE(std::filesystem::remove(copy + "/rank-00001-of-00002.h5"));
  const ProgramResult repaired = Ckpt({"repair", copy});
  EXPECT_EQ(repaired.exit_status, 0) << repaired.output;
  EXPECT_EQ(Ckpt({"verify", copy}).exit_status, 0);
}

// On another number of ranks than the save's.
TEST_P(FormatVersionTest, ARunGoesOnWithTheLossesThatItsOwnProgramHad) {
  const std::map<int64_t, double> losses = {{2, 3.4456642866134644}, {3, 3.43441641330719}};
  const std::string run = CopyOf(std::string(GetParam()) + "/run/config.json");
  ASSERT_OK_AND_ASSIGN(const ProgramResult result,
                       Train({"--nproc=1", "--grad_accum=2", "--config=" + run + "/config.json",
                              "--tokens=" + run + "/tokens.u16", "--batch_size=1", "--seq_len=16", "--steps=4",
                              "--checkpoint_dir=" + run, "--metrics=" + run + "/metrics.jsonl"}));
  ASSERT_EQ(result.exit_status, 0) << result.output;
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(run + "/metrics.jsonl"));
  ASSERT_EQ(metrics.size(), losses.size());
  for (const auto& [step, loss] : losses) EXPECT_NEAR(metrics.at(step).loss, loss, 1e-5) << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(Versions, FormatVersionTest, testing::Values("1.0"), [](const auto&) { return "Of1_0"; });

}  // namespace
}  // namespace fsdp
