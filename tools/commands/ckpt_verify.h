// SPDX-License-Identifier: Apache-2.0
//
// ckpt verify PATH: reads everything and says what is damaged.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_VERIFY_H_
#define FSDP_TOOLS_COMMANDS_CKPT_VERIFY_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set. A ROOT means its newest committed step, damaged or not. Returns the exit status.
int RunVerify(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_VERIFY_H_
