// SPDX-License-Identifier: Apache-2.0
//
// ckpt repair PATH: makes lost or damaged files of a checkpoint again from what is undamaged.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_REPAIR_H_
#define FSDP_TOOLS_COMMANDS_CKPT_REPAIR_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set. Returns the exit status: kExitDone when the checkpoint is whole, or would be.
int RunRepair(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_REPAIR_H_
