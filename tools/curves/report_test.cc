// SPDX-License-Identifier: Apache-2.0
//
// The page about training runs: its data equal its input lines; its appearance for a long, a killed, a restarted and a
// broken run; and its bounded size.
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tools/curves/line_chart.h"
#include "fsdp/tools/curves/report_page.h"
#include "fsdp/tools/curves/report_script.h"
#include "fsdp/tools/page/page_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StepMetrics Line(int64_t step, double loss) {
  return {.step = step,
          .loss = loss,
          .grad_norm = 1.0 / static_cast<double>(step + 1),
          .lr = 3e-4,
          .tokens_per_second = 1000.0 + static_cast<double>(step % 7),
          .step_seconds = 0.5,
          .peak_bytes = 4'000'000};
}

std::string WriteLines(const std::string& name, const std::vector<StepMetrics>& lines, const std::string& rest = "") {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream file(path);
  for (const StepMetrics& line : lines) file << MetricsLine(line) << "\n";
  file << rest;
  return path;
}

std::vector<StepMetrics> Steps(int64_t begin, int64_t end) {
  std::vector<StepMetrics> lines;
  for (int64_t step = begin; step < end; ++step) lines.push_back(Line(step, 5 - 0.01 * static_cast<double>(step)));
  return lines;
}

RunCurves Read(const std::string& path, int64_t points = 1'000) {
  absl::StatusOr<RunCurves> run = ReadRunCurves(path, points);
  EXPECT_OK(run.status());
  return run.ok() ? *std::move(run) : RunCurves();
}

nlohmann::json DataOf(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t from = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

int CountOf(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(ReportPageTest, TheDataInThePageAreTheLinesOfTheFile) {
  std::vector<StepMetrics> lines = Steps(0, 50);
  lines[3].loss = std::nextafter(1.0, 2);
  lines[7].save = true;
  for (StepMetrics& line : lines) line.hidden_share = 0.25;
  const std::string page = ReportPage({Read(WriteLines("data.jsonl", lines))});
  const nlohmann::json data = DataOf(page);
  ASSERT_EQ(data["runs"].size(), 1u);
  const nlohmann::json& run = data["runs"][0];
  EXPECT_EQ(run["lines"], 50);
  EXPECT_EQ(run["saves"], nlohmann::json({7}));
  ASSERT_EQ(run["parts"].size(), 1u);
  const nlohmann::json& part = run["parts"][0];
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(part["first"][i], lines[i].step);
    EXPECT_EQ(part["loss"][i].get<double>(), lines[i].loss);
    EXPECT_EQ(part["grad_norm"][i].get<double>(), lines[i].grad_norm);
    EXPECT_EQ(part["lr"][i].get<double>(), lines[i].lr);
    EXPECT_EQ(part["tokens_per_second"][i].get<double>(), lines[i].tokens_per_second);
    EXPECT_EQ(part["peak_bytes"][i].get<double>(), 4e6);
    EXPECT_EQ(part["hidden_share"][i].get<double>(), 0.25);
  }
  EXPECT_EQ(CountOf(page, "<svg class=\"chart\""), 6);
  EXPECT_EQ(CountOf(page, "class=\"line r0\""), 6);
  EXPECT_EQ(CountOf(page, "class=\"save r0\""), 6);
  ExpectTagsClose(page);
}

TEST(ReportPageTest, LoadsNothing) {
  ExpectLoadsNothing(ReportPage({Read(WriteLines("outside.jsonl", Steps(0, 5)))}));
  EXPECT_EQ(kReportScript.sha256, ScriptDigest(kReportScript.text));
}

// Regression: a line was drawn over an equal one, and nothing showed that there are two.
TEST(ReportPageTest, EqualCurvesAreDashedAndNamed) {
  std::vector<StepMetrics> other = Steps(0, 50);
  for (StepMetrics& line : other) line.loss *= 1.5;
  std::vector<RunCurves> runs = {Read(WriteLines("one.jsonl", Steps(0, 50))), Read(WriteLines("two.jsonl", other)),
                                 Read(WriteLines("three.jsonl", Steps(0, 40)))};
  for (size_t i = 0; i < 3; ++i) runs[i].name = std::vector<std::string>{"one", "two", "three"}[i];
  const LineChart loss = DrawLineChart(runs, {.curve = Curve::kLoss});
  EXPECT_THAT(loss.svg, AllOf(HasSubstr("class=\"line r0\""), HasSubstr("class=\"line r1\""),
                              HasSubstr("class=\"line r2 twin\"")));
  EXPECT_EQ(loss.coincident, (std::vector<std::pair<size_t, size_t>>{{0, 2}}));
  const LineChart lr = DrawLineChart(runs, {.curve = Curve::kLr});
  EXPECT_THAT(lr.svg, AllOf(HasSubstr("class=\"line r1 twin\""), HasSubstr("class=\"line r2 twin2\"")));
  EXPECT_THAT(ReportPage(runs), HasSubstr("<bdi>three</bdi> is on <bdi>one</bdi>"));
}

TEST(ReportPageTest, AxesHaveTitlesAndTheRunItsName) {
  RunCurves run = Read(WriteLines("titles.jsonl", Steps(0, 5)));
  run.name = "gpt2";
  const std::string page = ReportPage({run});
  EXPECT_THAT(page, AllOf(HasSubstr("<title>gpt2</title>"), HasSubstr("<h1><bdi>gpt2</bdi></h1>"),
                          HasSubstr(">nats per token</text>"), HasSubstr(">step</text>")));
}

TEST(ReportPageTest, RunsShareChartsAndATable) {
  std::vector<RunCurves> runs;
  for (int i = 0; i < kMaxRuns; ++i) {
    runs.push_back(Read(WriteLines(absl::StrCat("many", i, ".jsonl"), Steps(0, 10 + i)), PointsOfRun(kMaxRuns)));
  }
  const std::string page = ReportPage(runs);
  EXPECT_EQ(CountOf(page, "<svg class=\"chart\""), 5) << "the hidden share was not measured";
  EXPECT_EQ(CountOf(page, "<tr><td class=\"name\""), kMaxRuns);
  EXPECT_EQ(CountOf(page, "class=\"line r7 dashed"), 5);
  EXPECT_THAT(page, HasSubstr("The hidden share of communication was not measured: "));
  ExpectTagsClose(page);
}

TEST(ReportPageTest, StepsThatWereTrainedAgainAreDrawnTwice) {
  std::vector<StepMetrics> lines = Steps(0, 8);
  for (StepMetrics& line : Steps(4, 12)) lines.push_back(line);
  lines[8].restart = true;
  const RunCurves run = Read(WriteLines("restart.jsonl", lines));
  ASSERT_EQ(run.parts.size(), 2u);
  EXPECT_EQ(run.restarts(), 1);
  EXPECT_EQ(run.parts[0].points.size() + run.parts[1].points.size(), 16u);
  const std::string page = ReportPage({run});
  EXPECT_EQ(CountOf(page, "class=\"line r0 lost\""), 5);
  EXPECT_THAT(page, AllOf(HasSubstr("<title>restart at step 4</title>"), HasSubstr("pale: steps that were trained")));
  EXPECT_EQ(DataOf(page)["runs"][0]["parts"][1]["first"][0], 4);
}

TEST(ReportPageTest, AStepThatDoesNotFollowIsARestartToo) {
  EXPECT_EQ(Read(WriteLines("again.jsonl", {Line(0, 1), Line(1, 1), Line(1, 1), Line(0, 1)})).restarts(), 2);
  EXPECT_EQ(Read(WriteLines("gap.jsonl", {Line(0, 1), Line(10, 1)})).restarts(), 0);
}

TEST(ReportPageTest, ValuesThatAreNotFiniteAreGapsWithAMark) {
  const RunCurves run =
      Read(WriteLines("nan.jsonl", {Line(0, 4), Line(1, 3), Line(2, NAN), Line(3, INFINITY), Line(4, 2)}));
  const std::string page = ReportPage({run});
  EXPECT_THAT(page, AllOf(HasSubstr("<title>2 of 5 lines not finite</title>"), HasSubstr("<b class=\"bad\">2</b>")));
  const nlohmann::json data = DataOf(page);
  EXPECT_EQ(data["runs"][0]["parts"][0]["loss"], nlohmann::json({4.0, 3.0, nullptr, nullptr, 2.0}));
  const LineChart chart = DrawLineChart({run}, {.curve = Curve::kLoss});
  const size_t at = chart.svg.find("class=\"line r0\" d=\"") + 19;
  EXPECT_EQ(CountOf(chart.svg.substr(at, chart.svg.find('"', at) - at), "M"), 2) << chart.svg;
}

TEST(ReportPageTest, ARunWithoutAFiniteValueHasAPage) {
  const std::string page = ReportPage({Read(WriteLines("allnan.jsonl", {Line(0, NAN), Line(1, NAN)}))});
  EXPECT_THAT(page, AllOf(HasSubstr("not finite"), Not(HasSubstr("data-curve=\"loss\""))));
  EXPECT_THAT(ReportPage({Read(WriteLines("empty.jsonl", {}))}), HasSubstr("no step is in the file yet"));
}

TEST(ReportPageTest, ExtremeValuesStayInTheDrawing) {
  const double huge = std::numeric_limits<double>::max();
  for (const std::vector<StepMetrics>& lines : {std::vector<StepMetrics>{Line(0, huge), Line(1, -huge)},
                                                {Line(0, 1e-300), Line(1, huge)},
                                                {Line(7, 2)},
                                                {Line(0, 0), Line(1, 0)},
                                                {Line(0, -1), Line(int64_t{1} << 53, 1)}}) {
    const std::string page = ReportPage({Read(WriteLines("extreme.jsonl", lines))});
    EXPECT_THAT(page, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf "))));
    EXPECT_LT(page.size(), 100'000u);
  }
}

TEST(ReportPageTest, TheUnfinishedLineOfAKilledRunIsSaid) {
  const std::string page = ReportPage({Read(WriteLines("torn.jsonl", Steps(0, 3), "{\"step\":3,\"lo"))});
  EXPECT_THAT(page, HasSubstr("the last line is unfinished (13 bytes): the run was killed, or is writing it."));
  EXPECT_EQ(DataOf(page)["runs"][0]["lines"], 3);
}

TEST(RunCurvesTest, AMalformedLineIsNamed) {
  const auto reads = [](const std::string& rest) {
    return ReadRunCurves(WriteLines("broken.jsonl", Steps(0, 2), rest), 100).status();
  };
  for (const char* rest : {"{\"step\":2}\n", "\n", "[]\n", "{\"st\n{}\n", "\x80\xff\n"}) {
    EXPECT_THAT(reads(rest), StatusIs(absl::StatusCode::kInvalidArgument,
                                      AllOf(HasSubstr("broken.jsonl, line 3: "), HasSubstr("a step's metrics"))));
  }
  EXPECT_THAT(reads(std::string(3 << 20, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 3: is longer than 1 MiB")));
  EXPECT_THAT(ReadRunCurves("no/such.jsonl", 100), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such.jsonl")));
  EXPECT_THAT(ReadRunCurves(testing::TempDir(), 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a regular file")));
}

TEST(RunCurvesTest, MoreRestartsThanARunHasAreRefused) {
  const std::vector<StepMetrics> lines(kMaxParts + 1, Line(0, 1));
  EXPECT_THAT(ReadRunCurves(WriteLines("loop.jsonl", lines), 100).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loop.jsonl, line 257: is the 256th restart")));
}

TEST(RunCurvesTest, NoSpikeOfALongRunIsLost) {
  std::vector<StepMetrics> lines = Steps(0, 100'000);
  lines[43'210].loss = 1e6;
  lines[77'777].loss = NAN;
  for (size_t i = 99; i < lines.size(); i += 100) lines[i].save = true;
  const RunCurves run = Read(WriteLines("long.jsonl", lines), 100);
  ASSERT_EQ(run.parts.size(), 1u);
  EXPECT_LE(run.parts[0].points.size(), 201u);
  EXPECT_GE(run.parts[0].points.size(), 97u);
  EXPECT_EQ(run.stride, 512);
  int64_t covered = 0;
  int64_t nonfinite = 0;
  double largest = 0;
  for (const CurvePoint& point : run.parts[0].points) {
    EXPECT_EQ(point.first_step, covered);
    covered += point.lines;
    EXPECT_EQ(point.last_step, covered - 1);
    nonfinite += point.of(Curve::kLoss).nonfinite;
    largest = std::max(largest, point.of(Curve::kLoss).max);
  }
  EXPECT_EQ(covered, 100'000);
  EXPECT_EQ(nonfinite, 1);
  EXPECT_EQ(largest, 1e6);
  EXPECT_EQ(run.saves, 1'000);
  EXPECT_LE(run.save_marks.size(), static_cast<size_t>(kMaxSaveMarks));
  EXPECT_NEAR(run.tokens / run.seconds, run.total(Curve::kTokensPerSecond).mean, 1e-6);
  EXPECT_THAT(ReportPage({run}), AllOf(HasSubstr("Each point shows several lines"), HasSubstr(": up to 512 of 100"),
                                       HasSubstr("class=\"band r0\""), HasSubstr("checkpoints 250 are marked")));
}

TEST(ReportPageTest, TheSizeOfThePageIsBounded) {
  std::vector<StepMetrics> lines;
  for (int64_t i = 0; i < kMaxParts; ++i) {
    for (int64_t step = 0; step < 50; ++step)
      lines.push_back(Line(i * 7 + step, 1.0 / static_cast<double>(3 + step + i)));
    lines.back().save = true;
    lines.back().grad_norm = NAN;
    lines.back().hidden_share = 1.0 / 3;
  }
  const std::string path = WriteLines("size.jsonl", lines);
  const std::vector<RunCurves> runs(kMaxRuns, Read(path, PointsOfRun(kMaxRuns)));
  EXPECT_LT(ReportPage(runs).size(), 10u << 20);
  EXPECT_LT(ReportPage({Read(path, PointsOfRun(1))}).size(), 2u << 20);
}

TEST(ReportPageTest, ANameIsEscapedWhereverItIsShown) {
  RunCurves run = Read(WriteLines("name.jsonl", Steps(0, 2)));
  run.name = run.path = "<img src=x onerror=alert(1)>\"'&\n</script><!--\xff";
  for (const std::vector<RunCurves>& runs : {std::vector<RunCurves>{run}, std::vector<RunCurves>{run, run}}) {
    const std::string page = ReportPage(runs);
    EXPECT_THAT(page, AllOf(Not(HasSubstr("<img")), Not(HasSubstr("<!--")), Not(HasSubstr("\xff"))));
    EXPECT_EQ(CountOf(page, "</script>"), runs.size() == 1 ? 2 : 3);
    EXPECT_THAT(DataOf(page)["runs"][0]["path"].get<std::string>(), HasSubstr("<img src=x"));
    ExpectTagsClose(page);
  }
}

TEST(ValueTextTest, NumbersAreShort) {
  EXPECT_EQ(ValueText(0, ValueUnit::kNumber), "0");
  EXPECT_EQ(ValueText(3e-4, ValueUnit::kNumber), "3e-4");
  EXPECT_EQ(ValueText(-2.5e-7, ValueUnit::kNumber), "-2.5e-7");
  EXPECT_EQ(ValueText(1234, ValueUnit::kNumber), "1234");
  EXPECT_EQ(ValueText(12500, ValueUnit::kNumber), "12.5k");
  EXPECT_EQ(ValueText(2e6, ValueUnit::kNumber), "2M");
  EXPECT_EQ(ValueText(1e300, ValueUnit::kNumber), "1e300");
  EXPECT_EQ(ValueText(NAN, ValueUnit::kNumber), "–");
  EXPECT_EQ(ValueText(0.5, ValueUnit::kShare), "50 %");
  EXPECT_EQ(ValueText(1.5e9, ValueUnit::kBytes), "1.5 GB");
}

}  // namespace
}  // namespace fsdp
