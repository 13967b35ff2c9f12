// SPDX-License-Identifier: Apache-2.0
//
// ckpt repair: RepairCheckpoint does the work; the report lists the files that were made again and the problems that
// remain. If the checkpoint stays damaged, the exit status is 1, even if some of its files were repaired.
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/interruption.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

std::string ToJson(const std::string& path, const RepairReport& report, bool dry_run) {
  nlohmann::ordered_json json = {{"path", path},
                                 {"whole", report.is_whole()},
                                 {"dry_run", dry_run},
                                 {"repaired", report.repaired},
                                 {"problems", report.problems}};
  if (!report.is_whole() && !report.problems.empty()) json["problem"] = report.problems[0];
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void PrintText(const std::string& path, const RepairReport& report, bool dry_run) {
  for (const std::string& sentence : report.repaired) {
    Print("%s: %s\n", dry_run ? "would repair" : "repaired", sentence);
  }
  for (const std::string& sentence : report.problems) Print("not repaired: %s\n", sentence);
  // Otherwise RunRepair prints the result, on stderr.
  if (!report.is_whole()) return;
  const char* outcome = report.repaired.empty() ? "nothing is damaged" : dry_run ? "it can be repaired" : "it is whole";
  Print("%s: %s\n", path, outcome);
}

// `status`, or that `path` is a checkpoint of another format.
absl::Status WhyNotRepaired(const std::string& path, const absl::Status& status) {
  const absl::StatusOr<const FormatDriver*> driver = FindFormat(path);
  if (!driver.ok() || (*driver)->traits().is_ours) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is ", std::string((*driver)->traits().headline),
      ", expected a checkpoint of this project: other formats have no digests and no parity to repair them from"));
}

// How a repair ended, of which an interruption is to report whether it has changed the checkpoint.
absl::Status Outcome(const absl::StatusOr<RepairReport>& report, bool dry_run) {
  if (!report.ok()) return report.status();
  return report->is_whole() && !dry_run ? absl::OkStatus() : absl::CancelledError("nothing has changed");
}

}  // namespace

// With --dry_run the same report lists what a repair would do, and the exit status shows whether it would be enough.
int RunRepair(const CommandLine& line) {
  const std::string& path = line.operands[0];
  RepairOptions options;
  options.dry_run = absl::GetFlag(FLAGS_dry_run);
  Interruption interruption;
  options.file_system = &interruption.files();
  const absl::StatusOr<RepairReport> report = RepairCheckpoint(path, options);
  interruption.EndProgramIfInterrupted("ckpt repair", path, Outcome(report, options.dry_run));
  const bool json = absl::GetFlag(FLAGS_json);
  if (!report.ok()) {
    const absl::Status status = WhyNotRepaired(path, report.status());
    if (json) Print("%s", ProblemJson(status));
    return ReportFailure("ckpt repair", status);
  }
  json ? Print("%s", ToJson(path, *report, options.dry_run)) : PrintText(path, *report, options.dry_run);
  if (report->is_whole()) return kExitDone;
  const std::string problems = Counted(std::ssize(report->problems), "problem");
  return ReportFailure("ckpt repair", absl::DataLossError(absl::StrCat(path, " stays damaged: ", problems)));
}

}  // namespace fsdp
