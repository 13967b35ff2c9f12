// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

bool IsGiven(const CommandLine& line, const char* name) {
  return std::any_of(line.flags.begin(), line.flags.end(), [&](const auto& flag) { return flag.first == name; });
}

absl::StatusOr<CheckpointFormat> ParseFormat(const std::string& name) {
  if (name == "hdf5") return CheckpointFormat::kHdf5;
  if (name == "safetensors") return CheckpointFormat::kSafetensors;
  if (name == "torch") return CheckpointFormat::kTorch;
  if (name == "dcp") return CheckpointFormat::kDcp;
  return absl::InvalidArgumentError(absl::StrCat("--to=", name, ", expected hdf5, safetensors, torch or dcp"));
}

// Splits FROM=TO at its only '=' that is not part of a lookahead, "(?=".
absl::StatusOr<std::pair<std::string, std::string>> ParseRename(const std::string& text) {
  size_t split = text.npos;
  for (size_t at = text.find('='); at != text.npos; at = text.find('=', at + 1)) {
    if (at >= 2 && text.compare(at - 2, 2, "(?") == 0) continue;
    if (split != text.npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rename=", text, " has more than one '='; write \\x3D for one that is part of a name"));
    }
    split = at;
  }
  if (split == text.npos || split == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--rename=", text, ", expected FROM=TO"));
  }
  return std::make_pair(text.substr(0, split), text.substr(split + 1));
}

absl::StatusOr<ConvertOptions> OptionsFromFlags(const CommandLine& line) {
  ConvertOptions options;
  if (IsGiven(line, "to")) {
    FSDP_ASSIGN_OR_RETURN(options.to, ParseFormat(absl::GetFlag(FLAGS_to)));
  }
  if (IsGiven(line, "state_dict_type")) {
    FSDP_ASSIGN_OR_RETURN(options.state_dict_type, ParseStateDictType(absl::GetFlag(FLAGS_state_dict_type)));
  }
  if (IsGiven(line, "world_size")) options.world_size = absl::GetFlag(FLAGS_world_size);
  if (IsGiven(line, "dtype")) {
    FSDP_ASSIGN_OR_RETURN(options.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  }
  options.names.include = absl::GetFlag(FLAGS_include).values;
  options.names.exclude = absl::GetFlag(FLAGS_exclude).values;
  for (const std::string& rename : absl::GetFlag(FLAGS_rename).values) {
    FSDP_ASSIGN_OR_RETURN(options.names.rename.emplace_back(), ParseRename(rename));
  }
  options.model_only = absl::GetFlag(FLAGS_model_only);
  options.force = absl::GetFlag(FLAGS_force);
  FSDP_ASSIGN_OR_RETURN(options.flat_layout, ReadFlatLayout(absl::GetFlag(FLAGS_flat_layout)));
  if (IsGiven(line, "max_shard_size")) options.max_shard_size = absl::GetFlag(FLAGS_max_shard_size).bytes;
  options.parity = absl::GetFlag(FLAGS_parity);
  options.max_memory = absl::GetFlag(FLAGS_max_memory).bytes;
  return options;
}

std::string ToJson(const std::string& source, const std::string& destination, const ConvertReport& report,
                   absl::Duration elapsed) {
  nlohmann::ordered_json json = {{"source", source},
                                 {"destination", destination},
                                 {"tensors", report.tensors},
                                 {"bytes", report.bytes},
                                 {"seconds", absl::ToDoubleSeconds(elapsed)},
                                 {"notes", report.notes}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunConvert(const CommandLine& line) {
  const std::string& source = line.operands[0];
  const std::string& destination = line.operands[1];
  absl::StatusOr<ConvertOptions> options = OptionsFromFlags(line);
  if (!options.ok()) return ReportUsageError("ckpt convert", options.status());
  const absl::Status valid = CheckConvertOptions(destination, *options);
  if (!valid.ok()) return ReportUsageError("ckpt convert", valid);
  absl::StatusOr<ConvertReport> report;
  const absl::Time start = absl::Now();
  {
    Progress progress("convert");
    options->progress = progress.callback();
    report = ConvertCheckpoint(source, destination, *options);
  }
  const bool json = absl::GetFlag(FLAGS_json);
  if (!report.ok()) {
    if (json) std::fputs(ProblemJson(report.status()).c_str(), stdout);
    return ReportFailure("ckpt convert", report.status());
  }
  if (json) {
    std::fputs(ToJson(source, destination, *report, absl::Now() - start).c_str(), stdout);
    return kExitDone;
  }
  std::printf("%s: %lld tensor%s, %s\n", destination.c_str(), static_cast<long long>(report->tensors),
              report->tensors == 1 ? "" : "s", FormatBytes(static_cast<double>(report->bytes)).c_str());
  for (const std::string& note : report->notes) std::printf("note: %s\n", note.c_str());
  return kExitDone;
}

}  // namespace fsdp
