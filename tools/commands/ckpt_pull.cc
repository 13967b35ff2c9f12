// SPDX-License-Identifier: Apache-2.0
//
// ckpt pull: downloads a checkpoint from an object store to a directory. Every byte is compared with its digest on the
// way, so a directory under the final name has been verified.
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/steady_clock.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/formats/output_path.h"
#include "fsdp/checkpoint/object/download.h"
#include "fsdp/checkpoint/object/open_store.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/interruption.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

struct Pulled {
  std::string source;  // the checkpoint: a step, if a run was named
  DownloadReport report;
  absl::Duration elapsed;
};

absl::StatusOr<Pulled> Pull(const S3Url& url, const std::string& destination, FileSystem& files) {
  // Before any byte is downloaded, which may take long.
  FSDP_RETURN_IF_ERROR(CheckOutput(destination, InputPaths(), {.kind = OutputKind::kCheckpoint}));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store,
                        OpenObjectStore(url, absl::GetFlag(FLAGS_endpoint_url)));
  FSDP_ASSIGN_OR_RETURN(const std::string step, FindRemoteCheckpoint(*store, url.prefix));
  Pulled pulled = {.source = store->UrlOf(step), .report = {}, .elapsed = {}};
  Progress progress("pull");
  const absl::Time start = SteadyNow();
  FSDP_ASSIGN_OR_RETURN(pulled.report,
                        DownloadCheckpoint(*store, step, files, destination,
                                           {.overwrite = absl::GetFlag(FLAGS_force), .progress = progress.callback()}));
  pulled.elapsed = SteadyNow() - start;
  return pulled;
}

std::string ToJson(const Pulled& pulled, const std::string& destination) {
  using Json = nlohmann::ordered_json;
  const Json json = {{"source", pulled.source},
                     {"destination", destination},
                     {"step", pulled.report.step < 0 ? Json() : Json(pulled.report.step)},
                     {"files", pulled.report.files},
                     {"bytes", pulled.report.bytes},
                     {"seconds", absl::ToDoubleSeconds(pulled.elapsed)}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunPull(const CommandLine& line) {
  const std::string& destination = line.operands[1];
  const absl::StatusOr<S3Url> url = ParseS3Url(line.operands[0]);
  if (!url.ok()) return ReportUsage("ckpt pull", url.status());
  Interruption interruption;
  const absl::StatusOr<Pulled> pulled = Pull(*url, destination, interruption.files());
  interruption.EndProgramIfInterrupted("ckpt pull", destination, pulled.status());
  const bool is_json = absl::GetFlag(FLAGS_json);
  if (!pulled.ok()) {
    const absl::Status status = SuggestForce(pulled.status(), destination);
    if (is_json) Print("%s", ProblemJson(status));
    return ReportFailure("ckpt pull", status);
  }
  if (is_json) {
    Print("%s", ToJson(*pulled, destination));
    return kExitDone;
  }
  Print("%s: %s, %s, of %s: every digest matches\n", destination, Counted(pulled->report.files, "file"),
        FormatBytes(static_cast<double>(pulled->report.bytes)), pulled->source);
  return kExitDone;
}

}  // namespace fsdp
