// SPDX-License-Identifier: Apache-2.0
//
// ckpt convert SRC DST: another format, kind, world size, dtype or names.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_CONVERT_H_
#define FSDP_TOOLS_COMMANDS_CKPT_CONVERT_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set; `line` says which were given. Returns the exit status.
int RunConvert(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_CONVERT_H_
