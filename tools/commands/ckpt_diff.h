// SPDX-License-Identifier: Apache-2.0
//
// ckpt diff A B: what differs between two checkpoints, in structure and in values.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_DIFF_H_
#define FSDP_TOOLS_COMMANDS_CKPT_DIFF_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set. A ROOT means its newest step that verifies. Returns the exit status: kExitDone when
// the two are equal, kExitFailed when they differ or one cannot be read.
int RunDiff(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_DIFF_H_
