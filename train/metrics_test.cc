// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/metrics.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::HasSubstr;

std::string PathOf(const std::string& name) { return testing::TempDir() + "/" + name; }

TEST(MetricsWriterTest, DoublesReadBackAsTheSameDoubles) {
  const StepMetrics metrics = {.step = 3, .loss = std::nextafter(5.1, 6), .grad_norm = 0.1, .lr = 1.0 / 3};
  const nlohmann::json line = nlohmann::json::parse(MetricsLine(metrics));
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["loss"].get<double>(), metrics.loss);
  EXPECT_EQ(line["grad_norm"].get<double>(), metrics.grad_norm);
  EXPECT_EQ(line["lr"].get<double>(), metrics.lr);
  EXPECT_TRUE(line.contains("tokens_per_second") && line.contains("step_seconds") && line.contains("peak_bytes"));
  EXPECT_FALSE(line.contains("scale")) << "no gradient scaler";
  EXPECT_FALSE(line.contains("hidden_share") || line.contains("restart") || line.contains("save"));
}

TEST(MetricsWriterTest, ALineIsInTheFileAsSoonAsItIsWritten) {
  const std::string path = PathOf("flushed.jsonl");
  ASSERT_OK_AND_ASSIGN(const auto writer, MetricsWriter::Open(path, MetricsWriter::Mode::kTruncate));
  ASSERT_OK(writer->Write({.step = 0, .loss = 2.5}));
  EXPECT_THAT(ReadFile(path), HasSubstr("\"loss\":2.5"));
  EXPECT_EQ(ReadFile(path).back(), '\n');
}

TEST(MetricsWriterTest, AppendsOnAResumeAndTruncatesOtherwise) {
  const std::string path = PathOf("modes.jsonl");
  for (const auto mode : {MetricsWriter::Mode::kTruncate, MetricsWriter::Mode::kAppend}) {
    ASSERT_OK_AND_ASSIGN(const auto writer, MetricsWriter::Open(path, mode));
    ASSERT_OK(writer->Write({.step = 1}));
  }
  EXPECT_EQ(ReadFile(path), MetricsLine({.step = 1}) + "\n" + MetricsLine({.step = 1}) + "\n");
  ASSERT_OK(MetricsWriter::Open(path, MetricsWriter::Mode::kTruncate).status());
  EXPECT_EQ(ReadFile(path), "");
}

TEST(MetricsWriterTest, CutsTheUnfinishedLineThatACrashLeft) {
  const std::string path = PathOf("torn.jsonl");
  std::ofstream(path) << "{\"step\":0}\n{\"st";
  ASSERT_OK_AND_ASSIGN(const auto writer, MetricsWriter::Open(path, MetricsWriter::Mode::kAppend));
  ASSERT_OK(writer->Write({.step = 1}));
  EXPECT_EQ(ReadFile(path), "{\"step\":0}\n" + MetricsLine({.step = 1}) + "\n");
}

TEST(MetricsWriterTest, WrittenStepsReadBackWhileTheFileGrows) {
  const std::string path = PathOf("read.jsonl");
  ASSERT_OK_AND_ASSIGN(const auto writer, MetricsWriter::Open(path, MetricsWriter::Mode::kTruncate));
  ASSERT_OK(writer->Write({.step = 7,
                           .loss = 1.0 / 3,
                           .grad_norm = INFINITY,
                           .peak_bytes = int64_t{1} << 40,
                           .scale = 65536,
                           .hidden_share = 0.75,
                           .restart = true,
                           .save = true}));
  std::ofstream(path, std::ios::app) << "{\"st";
  ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> steps, ReadMetrics(path));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 7);
  EXPECT_EQ(steps[0].loss, 1.0 / 3);
  EXPECT_TRUE(std::isnan(steps[0].grad_norm));  // JSON has no infinity
  EXPECT_EQ(steps[0].peak_bytes, int64_t{1} << 40);
  EXPECT_EQ(steps[0].scale, 65536);
  EXPECT_EQ(steps[0].hidden_share, 0.75);
  EXPECT_TRUE(steps[0].restart);
  EXPECT_TRUE(steps[0].save);
}

TEST(MetricsWriterTest, ValuesThatPythonWritesAsWordsAreNaN) {
  ASSERT_OK_AND_ASSIGN(
      const StepMetrics metrics,
      ParseMetricsLine(R"({"step": 4, "loss": NaN, "grad_norm": -Infinity, "lr": Infinity, )"
                       R"("tokens_per_second": 2.5, "step_seconds": 1, "peak_bytes": 0, "n\"": "NaN"})"));
  EXPECT_TRUE(std::isnan(metrics.loss) && std::isnan(metrics.grad_norm) && std::isnan(metrics.lr));
  EXPECT_EQ(metrics.tokens_per_second, 2.5);
  const std::string rest =
      R"(, "loss": 1, "grad_norm": 1, "lr": 1, "tokens_per_second": 1, "step_seconds": 1, "peak_bytes": 1})";
  EXPECT_OK(ParseMetricsLine("{\"step\": 9007199254740992" + rest).status());
  for (const char* step : {"-1", "9007199254740993", "18446744073709551615", "1e3", "1e999"}) {
    EXPECT_FALSE(ParseMetricsLine(absl::StrCat("{\"step\": ", step, rest)).ok()) << step;
  }
  EXPECT_THAT(ParseMetricsLine(R"({"step": NaN, "loss": 1})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a JSON object with a step's metrics: {")));
}

TEST(MetricsWriterTest, ReadingNamesTheLineThatIsNotOurs) {
  const std::string path = PathOf("foreign.jsonl");
  std::ofstream(path) << MetricsLine({.step = 0}) << "\n{\"step\": \"one\"}\n";
  EXPECT_THAT(ReadMetrics(path), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("foreign.jsonl, line 2")));
}

TEST(MetricsWriterTest, NamesAFileThatCannotBeOpened) {
  EXPECT_THAT(MetricsWriter::Open("no/such/metrics.jsonl", MetricsWriter::Mode::kTruncate),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no/such/metrics.jsonl")));
}

}  // namespace
}  // namespace fsdp
