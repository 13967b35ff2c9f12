// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_report.h"

#include <cstdio>

#include "tools/command_line.h"

namespace fsdp {

int ReportFailure(const std::string& program, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace fsdp
