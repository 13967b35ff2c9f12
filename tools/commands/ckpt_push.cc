// SPDX-License-Identifier: Apache-2.0
//
// ckpt push: verifies a checkpoint of ours and uploads it to an object store. Readers will see the uploaded bytes for
// ever, so a damaged byte must not get there; checkpoint/object/upload.h has the other steps of an upload.
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/object/open_store.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/object/upload.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/interruption.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

struct Pushed {
  std::string source;                     // the checkpoint: a step, if a ROOT was named
  std::string destination;                // "s3://bucket/run/step-00000100"
  std::vector<std::string> skipped = {};  // of LatestCheckpoint
  UploadReport report;
  absl::Duration elapsed;
};

absl::StatusOr<Pushed> Push(const std::string& source, const S3Url& run) {
  FSDP_ASSIGN_OR_RETURN(const FormatDriver* const driver, FindFormat(source));
  // Only our manifest makes an upload atomic, and has the digests to check it.
  if (!driver->traits().is_ours) {
    return absl::InvalidArgumentError(absl::StrCat(source, " is ", std::string(driver->traits().headline),
                                                   ", expected a checkpoint of this project: make one of it by ckpt "
                                                   "convert, or copy its files with a client of the store"));
  }
  // Opened before the verification, which may take long.
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store,
                        OpenObjectStore(run, absl::GetFlag(FLAGS_endpoint_url)));
  Pushed pushed;
  // Verifies: of a ROOT the newest step that is whole.
  FSDP_ASSIGN_OR_RETURN(pushed.source, LatestCheckpoint(source, &pushed.skipped));
  Progress progress("push");
  const InterruptionNotice notice(absl::StrCat("ckpt push: interrupted: readers see a step in ",
                                               store->UrlOf(run.prefix),
                                               " only when all of it is there; push again to send the rest"));
  const absl::Time start = SteadyNow();
  FSDP_ASSIGN_OR_RETURN(pushed.report,
                        UploadCheckpoint(PosixFileSystem(), pushed.source, *store, run.prefix,
                                         {.overwrite = absl::GetFlag(FLAGS_force), .progress = progress.callback()}));
  pushed.elapsed = SteadyNow() - start;
  pushed.destination = store->UrlOf(pushed.report.step);
  return pushed;
}

std::string ToJson(const Pushed& pushed) {
  nlohmann::ordered_json json = {{"source", pushed.source},
                                 {"destination", pushed.destination},
                                 {"files", pushed.report.files},
                                 {"bytes", pushed.report.bytes},
                                 {"sent_files", pushed.report.sent_files},
                                 {"sent_bytes", pushed.report.sent_bytes},
                                 {"swept_files", pushed.report.swept_files},
                                 {"seconds", absl::ToDoubleSeconds(pushed.elapsed)}};
  if (!pushed.skipped.empty()) json["skipped"] = pushed.skipped;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void PrintText(const Pushed& pushed) {
  const UploadReport& report = pushed.report;
  Print("%s: %s, %s, of %s\n", pushed.destination, Counted(report.files, "file"),
        FormatBytes(static_cast<double>(report.bytes)), pushed.source);
  for (const std::string& skipped : pushed.skipped) Print("skipped: %s\n", skipped);
  // From an earlier upload of the same save, whole or broken off.
  if (report.sent_files < report.files) {
    Print("note: there already: %s\n", Counted(report.files - report.sent_files, "file"));
  }
  if (report.swept_files > 0) {
    Print("note: deleted %s of other saves of this step, which were replaced or never complete\n",
          Counted(report.swept_files, "file"));
  }
}

}  // namespace

int RunPush(const CommandLine& line) {
  const absl::StatusOr<S3Url> run = ParseS3Url(line.operands[1]);
  if (!run.ok()) return ReportUsage("ckpt push", run.status());
  const absl::StatusOr<Pushed> pushed = Push(line.operands[0], *run);
  const bool is_json = absl::GetFlag(FLAGS_json);
  if (!pushed.ok()) {
    if (is_json) Print("%s", ProblemJson(pushed.status()));
    return ReportFailure("ckpt push", pushed.status());
  }
  if (is_json) {
    Print("%s", ToJson(*pushed));
  } else {
    PrintText(*pushed);
  }
  return kExitDone;
}

}  // namespace fsdp
