// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/cli/ckpt_report.h"

#include "absl/strings/str_replace.h"
#include "fsdp/base/command_line.h"
#include "fsdp/base/terminal.h"
#include "nlohmann/json.hpp"

namespace fsdp {

std::string WithFlagNames(absl::string_view message) {
  // StrReplaceAll takes the longest match, so the second pattern has precedence over the third.
  return absl::StrReplaceAll(message, {{"ConvertOptions::", "--"},
                                       {"DiffOptions::", "--"},
                                       {"TensorSourceOptions::model_only", "ckpt convert --model_only"},
                                       {"TensorSourceOptions::", "--"}});
}

int ReportFailure(const std::string& program, const absl::Status& status) {
  PrintError("%s: %s\n", program, WithFlagNames(status.message()));
  return kExitFailed;
}

std::string ProblemJson(const absl::Status& status) {
  const nlohmann::ordered_json json = {{"problem", WithFlagNames(status.message())}};
  // Messages contain names from damaged files. By default dump throws for bytes that are not UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp
