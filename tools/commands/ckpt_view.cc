// SPDX-License-Identifier: Apache-2.0
//
// ckpt view: WriteHdf5View makes the file; a tensor that HDF5 cannot show is a note, not an error. The view refers to
// the payload in the source's files and copies none of it.
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "fsdp/base/counted.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/convert/hdf5_view.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/ckpt_source.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

absl::StatusOr<Hdf5ViewReport> View(const std::string& source, const std::string& path) {
  Hdf5ViewOptions options;
  options.overwrite = absl::GetFlag(FLAGS_force);
  options.relative = absl::GetFlag(FLAGS_relative);
  FSDP_ASSIGN_OR_RETURN(options.source, SourceOptionsFromFlags());
  options.source.skip_links = true;  // they become not_shown; HDF5 files with links are refused anyway
  options.also_read.Add(absl::GetFlag(FLAGS_flat_layout));
  return WriteHdf5View(source, path, options);
}

std::string ToJson(const std::string& source, const std::string& path, const Hdf5ViewReport& report) {
  nlohmann::ordered_json json = {
      {"source", source}, {"destination", path}, {"tensors", report.tensors}, {"bytes", report.nbytes}};
  json["not_shown"] = nlohmann::ordered_json::array();
  for (const auto& [name, reason] : report.not_shown)
    json["not_shown"].push_back({{"tensor", name}, {"reason", reason}});
  json["notes"] = nlohmann::ordered_json::array({report.moves});
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunView(const CommandLine& line) {
  const std::string& path = line.operands[1];
  const absl::StatusOr<Hdf5ViewReport> report = View(line.operands[0], path);
  const bool is_json = absl::GetFlag(FLAGS_json);
  if (!report.ok()) {
    const absl::Status status = SuggestForce(report.status(), path);
    if (is_json) Print("%s", ProblemJson(status));
    return ReportFailure("ckpt view", status);
  }
  if (is_json) {
    Print("%s", ToJson(line.operands[0], path, *report));
    return kExitDone;
  }
  Print("%s: %s, shows %s of %s\n", path, FormatBytes(static_cast<double>(report->nbytes)),
        Counted(report->tensors, "tensor"), line.operands[0]);
  // Names come from the file and are quoted, since they may contain bytes that a terminal interprets.
  for (const auto& [name, reason] : report->not_shown) {
    Print("note: %s is not shown: %s\n", Quote(name), reason);
  }
  Print("note: %s\n", report->moves);
  return kExitDone;
}

}  // namespace fsdp
