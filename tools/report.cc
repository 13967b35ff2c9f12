// SPDX-License-Identifier: Apache-2.0
//
// report: a page of HTML about one or several training runs, from what train_gpt --metrics wrote.
//
//   report metrics.jsonl --html=report.html
//   report runs/lr-1e-3/metrics.jsonl runs/lr-3e-4/metrics.jsonl --html=compare.html
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/tools/cli/output_file.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/curves/report_page.h"
#include "fsdp/tools/curves/run_names.h"

ABSL_FLAG(std::string, html, "",
          "the page to make, which replaces a file of that name; must be given, and not be a METRICS.jsonl");

namespace fsdp {
namespace {

constexpr char kUsage[] =
    "report METRICS.jsonl... --html=FILE\n"
    "Makes one self-contained page of 1 to 16 training runs, from what train_gpt --metrics wrote: curves, checkpoints, "
    "restarts, and a table. A last line without its newline, which a killed run leaves, is left out, and the page says "
    "so.\n"
    "\n"
    "examples:\n"
    "  report metrics.jsonl --html=report.html\n"
    "  report runs/lr-1e-3/metrics.jsonl runs/lr-3e-4/metrics.jsonl --html=compare.html\n"
    "\n"
    "exit status: 0 done; 1 a file cannot be read, a line is malformed, or the page cannot be written; 2 the command "
    "line is wrong.\n"
    "environment: COLUMNS, the width of this text.\n";

// Checked before anything is read: the page must be neither an input nor inside a checkpoint.
absl::Status CheckPage(const std::string& page, const std::vector<std::string>& metrics) {
  InputPaths inputs;
  for (const std::string& path : metrics) inputs.Add(path);
  return Annotate(CheckOutput(page, inputs, {.may_lie_beside_models = true}), absl::StrCat("--html=", page));
}

// By their directories, and with paths that a reader elsewhere understands.
void NameRuns(std::vector<RunCurves>& runs) {
  std::vector<std::string> paths;
  for (RunCurves& run : runs) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(run.path, error).lexically_normal();
    if (!error) run.path = absolute;
    paths.push_back(run.path);
  }
  const std::vector<std::string> names = RunNames(paths);
  for (size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
}

absl::Status MakeReport(const std::vector<std::string>& metrics, const std::string& path) {
  FSDP_RETURN_IF_ERROR(CheckPage(path, metrics));
  std::vector<RunCurves> runs;
  int64_t lines = 0;
  for (const std::string& file : metrics) {
    FSDP_ASSIGN_OR_RETURN(RunCurves run, ReadRunCurves(file, PointsOfRun(metrics.size())));
    lines += run.lines;
    runs.push_back(std::move(run));
  }
  NameRuns(runs);
  // All files are read before anything is written, so that a bad one leaves no page.
  const std::string page = ReportPage(runs);
  FSDP_RETURN_IF_ERROR(WriteOutputFile(page, path));
  Print("%s: %s, %s, %s\n", Printable(path), Counted(std::ssize(runs), "run"), Counted(lines, "step"),
        FormatBytes(static_cast<double>(page.size())));
  return absl::OkStatus();
}

absl::Status CheckCommandLine(const std::vector<std::string>& metrics, const std::string& page) {
  if (metrics.empty()) return absl::InvalidArgumentError("METRICS.jsonl is missing: a file of train_gpt --metrics");
  if (metrics.size() > kMaxRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat(metrics.size(), " files, expected at most ", kMaxRuns, ": more runs cannot be told apart"));
  }
  if (page.empty()) return absl::InvalidArgumentError("--html is missing: the page to make");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  // A file that outgrows its limit (ulimit -f) is then an error like a full disk, and does not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::vector<std::string> metrics;
  if (const std::optional<int> status = ParseFlags(argc, argv, kUsage, &metrics)) return *status;
  const std::string page = absl::GetFlag(FLAGS_html);
  if (const absl::Status status = CheckCommandLine(metrics, page); !status.ok()) {
    return ReportUsageError("report", status);
  }
  const absl::Status status = MakeReport(metrics, page);
  if (status.ok()) return kExitDone;
  PrintError("report: %s\n", status.message());
  return kExitFailed;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::FinishOutput("report", fsdp::Main(argc, argv)); }
