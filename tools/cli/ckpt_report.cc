// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/ckpt_report.h"

#include <filesystem>
#include <system_error>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/problem_json.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/object/s3_url.h"
#include "fsdp/tools/cli/ckpt_flags.h"

namespace fsdp {

std::string WithFlagNames(absl::string_view message) {
  // StrReplaceAll takes the longest match, so the second pattern has precedence over the third.
  return absl::StrReplaceAll(message, {{"ConvertOptions::", "--"},
                                       {"DiffOptions::", "--"},
                                       {"RunHistoryOptions::", "--"},
                                       {"TensorSourceOptions::model_only", "ckpt convert --model_only"},
                                       {"TensorSourceOptions::", "--"}});
}

absl::Status SuggestForce(const absl::Status& status, const std::string& path) {
  // A library may put "./" before a name in the working directory.
  absl::string_view message = status.message();
  if (!absl::StartsWith(path, "./")) absl::ConsumePrefix(&message, "./");
  // Not for a hidden file of another program, which is an error of the same code.
  if (!absl::IsAlreadyExists(status) || !absl::StartsWith(message, path + " exists")) return status;
  return WithMessage(status, absl::StrCat(message, "; --force replaces it"));
}

absl::Status CheckAreFiles(const std::vector<std::string>& operands) {
  for (const std::string& operand : operands) {
    if (!IsS3Url(operand)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Printable(WithoutPassword(operand)),
        " is in an object store, expected a path: copy it with ckpt pull first, or copy the result with ckpt push"));
  }
  return absl::OkStatus();
}

absl::Status CheckAreNoOtherUrls(const std::vector<std::string>& operands) {
  for (const std::string& operand : operands) {
    // Of a variable of the shell that is not set.
    if (operand.empty()) return absl::InvalidArgumentError("an argument is empty, expected a path");
    const size_t colon = operand.find("://");
    if (IsS3Url(operand) || colon == operand.npos || colon == 0) continue;
    if (operand.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+-.") != colon) continue;
    std::error_code ignored;
    if (std::filesystem::exists(operand, ignored)) continue;
    const std::string scheme = operand.substr(0, colon);
    const std::string rest = Printable(WithoutPassword(operand.substr(colon + 3)));
    const std::string what_to_do = scheme == "file" ? absl::StrCat("give the path: ", rest)
                                   : scheme == "hf" ? absl::StrCat("`hf download ", rest, "` makes files of it")
                                                    : "download it first";
    return absl::InvalidArgumentError(absl::StrCat(Printable(WithoutPassword(operand)),
                                                   " is a URL, expected a path or s3://BUCKET/PREFIX: ", what_to_do));
  }
  return absl::OkStatus();
}

int ReportFailure(const std::string& program, const absl::Status& status) {
  PrintError("%s: %s\n", program, WithFlagNames(status.message()));
  return kExitFailed;
}

int ReportUsage(const std::string& program, const absl::Status& status) {
  if (absl::GetFlag(FLAGS_json)) Print("%s", ProblemJson(status));
  return ReportUsageError(program, status);
}

std::string ProblemJson(const absl::Status& status) {
  return ProblemJson(status.code(), WithFlagNames(status.message()));
}

}  // namespace fsdp
