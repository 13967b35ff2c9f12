// SPDX-License-Identifier: Apache-2.0
//
// The program report from outside: its exit statuses, what it refuses, and how a browser renders its page.
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/runfile.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/train/metrics.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/report-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

// A run that was killed after step 5, continued from step 4, and has a value that is not finite.
std::string WriteRun(const std::string& path, double loss) {
  std::ofstream file(path);
  for (const int64_t step : {0, 1, 2, 3, 4, 5, 4, 5, 6, 7}) {
    file << MetricsLine({.step = step,
                         .loss = loss / static_cast<double>(step + 1),
                         .grad_norm = step == 6 ? NAN : 1,
                         .lr = 1e-3,
                         .tokens_per_second = 100,
                         .step_seconds = 1,
                         .peak_bytes = 1'000,
                         .save = step == 3})
         << "\n";
  }
  return path;
}

ProgramResult Report(const std::vector<std::string>& arguments) {
  const absl::StatusOr<std::string> program = FindRunfile("tools/report");
  EXPECT_OK(program.status());
  std::vector<std::string> command = {*program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const absl::StatusOr<ProgramResult> result = RunProgram(command, absl::Minutes(1));
  EXPECT_OK(result.status());
  return result.ok() ? *result : ProgramResult();
}

TEST(ReportProgramTest, MakesAPageOfSeveralRuns) {
  const std::string directory = NewDirectory();
  const std::string a = WriteRun(directory + "/a.jsonl", 4);
  const std::string b = WriteRun(directory + "/b.jsonl", 5);
  const std::string page = directory + "/page.html";
  const ProgramResult result = Report({a, b, "--html=" + page});
  EXPECT_EQ(result.exit_status, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("page.html: 2 runs, 20 steps, "));
  EXPECT_THAT(ReadFile(page), AllOf(HasSubstr("2 training runs"), HasSubstr("b.jsonl")));
  EXPECT_EQ(Report({a, "--html=" + page}).exit_status, 0);
  EXPECT_THAT(ReadFile(page), Not(HasSubstr("b.jsonl"))) << "replaced";
}

TEST(ReportProgramTest, RefusesAPageThatIsWhatItReads) {
  const std::string directory = NewDirectory();
  const std::string metrics = WriteRun(directory + "/metrics.jsonl", 4);
  fs::create_symlink(metrics, directory + "/link");
  fs::create_hard_link(metrics, directory + "/hard");
  const std::string before = ReadFile(metrics);
  for (const char* name : {"metrics.jsonl", "link", "hard", "./metrics.jsonl"}) {
    const ProgramResult result = Report({metrics, absl::StrCat("--html=", directory, "/", name)});
    EXPECT_EQ(result.exit_status, 1) << name;
    EXPECT_THAT(result.output, HasSubstr("which is read")) << name;
  }
  EXPECT_EQ(ReadFile(metrics), before);
}

TEST(ReportProgramTest, ReadsItsCommandLineStrictly) {
  const std::string directory = NewDirectory();
  const std::string metrics = WriteRun(directory + "/metrics.jsonl", 4);
  const ProgramResult no_page = Report({metrics});
  EXPECT_EQ(no_page.exit_status, 2);
  EXPECT_THAT(no_page.output, HasSubstr("--html is missing"));
  const ProgramResult no_run = Report({"--html=" + directory + "/page.html"});
  EXPECT_EQ(no_run.exit_status, 2);
  EXPECT_THAT(no_run.output, HasSubstr("METRICS.jsonl is missing"));
  std::vector<std::string> many(17, metrics);
  many.push_back("--html=" + directory + "/page.html");
  EXPECT_EQ(Report(many).exit_status, 2);
  EXPECT_FALSE(fs::exists(directory + "/page.html"));
}

TEST(ReportProgramTest, AMalformedLineLeavesTheEarlierPage) {
  const std::string directory = NewDirectory();
  const std::string metrics = WriteRun(directory + "/metrics.jsonl", 4);
  std::ofstream(metrics, std::ios::app) << "{\"step\": 8}\n";
  std::ofstream(directory + "/page.html") << "earlier";
  const ProgramResult result = Report({metrics, "--html=" + directory + "/page.html"});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("report: "), HasSubstr("metrics.jsonl, line 11: ")));
  EXPECT_EQ(ReadFile(directory + "/page.html"), "earlier");
  EXPECT_EQ(Report({directory + "/none.jsonl", "--html=" + directory + "/page.html"}).exit_status, 1);
  EXPECT_EQ(Report({metrics, "--html=" + directory + "/no/page.html"}).exit_status, 1);
  fs::create_directory(directory + "/empty");
  const std::string good = WriteRun(directory + "/good.jsonl", 4);
  const ProgramResult on_directory = Report({good, "--html=" + directory + "/empty"});
  EXPECT_EQ(on_directory.exit_status, 1);
  EXPECT_THAT(on_directory.output, HasSubstr("is a directory"));
  EXPECT_TRUE(fs::is_directory(directory + "/empty"));
}

TEST(ReportProgramTest, RefusesMetricsThatAreNoFile) {
  const std::string directory = NewDirectory(), page = NewDirectory() + "/page.html";
  ASSERT_EQ(mkfifo((directory + "/fifo").c_str(), 0600), 0);
  for (const std::string& metrics : {directory + "/fifo", std::string("/dev/zero"), directory}) {
    const ProgramResult result = Report({metrics, "--html=" + page});
    EXPECT_EQ(result.exit_status, 1) << metrics;
    EXPECT_THAT(result.output, HasSubstr(metrics + ": is not a regular file; expected a file that train_gpt"));
  }
}

std::string Chromium() {
  for (const char* path : {"/usr/bin/chromium", "/usr/bin/chromium-headless-shell", "/usr/bin/google-chrome"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

// The page's script appends a cursor to each chart, and the content security policy is in force: the document that the
// browser prints after running the page shows both. Its console goes to stderr, which is in the output too.
TEST(ReportProgramTest, ABrowserShowsEveryCurveAndReportsNoError) {
  const std::string chromium = Chromium();
  if (chromium.empty()) GTEST_SKIP() << "there is no Chromium here: apt-get install chromium-headless-shell";
  const std::string directory = NewDirectory();
  const std::string page = directory + "/page.html";
  const ProgramResult made =
      Report({WriteRun(directory + "/a<b>.jsonl", 4), WriteRun(directory + "/b.jsonl", 5), "--html=" + page});
  ASSERT_EQ(made.exit_status, 0) << made.output;
  const auto print = [&](const std::string& file) {
    return RunProgram(
        {chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--user-data-dir=" + directory + "/profile", "--enable-logging=stderr", "--dump-dom", "file://" + file},
        absl::Minutes(2));
  };
  ASSERT_OK_AND_ASSIGN(const ProgramResult shown, print(page));
  ASSERT_EQ(shown.exit_status, 0) << shown.output;
  EXPECT_THAT(shown.output, Not(HasSubstr("CONSOLE")));
  for (const char* curve : {"loss", "grad_norm", "lr", "tokens_per_second", "peak_bytes"}) {
    const size_t at = shown.output.find(absl::StrCat("data-curve=\"", curve, "\""));
    ASSERT_NE(at, std::string::npos) << curve << "\n" << shown.output;
    const std::string section = shown.output.substr(at, shown.output.find("</section>", at) - at);
    EXPECT_THAT(section,
                AllOf(HasSubstr("class=\"line r0\""), HasSubstr("class=\"line r1"), HasSubstr("class=\"line r0 lost\""),
                      HasSubstr("class=\"restart r1\""), HasSubstr("class=\"save r1\""), HasSubstr("class=\"cursor\"")))
        << curve;
  }
  EXPECT_THAT(shown.output, AllOf(HasSubstr("1 of 10 lines not finite"), HasSubstr("a&lt;b&gt;.<wbr>jsonl")));

  // The policy allows the page's own script only: one that was altered does not run.
  std::string broken = ReadFile(page);
  broken.insert(broken.find("\"use strict\";"), "throw new Error(\"made to fail\");");
  std::ofstream(directory + "/broken.html") << broken;
  ASSERT_OK_AND_ASSIGN(const ProgramResult failed, print(directory + "/broken.html"));
  EXPECT_THAT(failed.output,
              AllOf(HasSubstr("CONSOLE"), HasSubstr("Content Security Policy"), Not(HasSubstr("class=\"cursor\""))));
}

}  // namespace
}  // namespace fsdp
