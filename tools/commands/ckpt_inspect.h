// SPDX-License-Identifier: Apache-2.0
//
// ckpt inspect PATH: what a checkpoint is and which file holds what, from its metadata alone.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_INSPECT_H_
#define FSDP_TOOLS_COMMANDS_CKPT_INSPECT_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set. A ROOT means its newest step that verifies. Returns the exit status.
int RunInspect(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_INSPECT_H_
