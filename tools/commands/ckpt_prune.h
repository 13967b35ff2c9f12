// SPDX-License-Identifier: Apache-2.0
//
// ckpt prune DIR: deletes old steps of a ROOT, and what crashes left there.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_PRUNE_H_
#define FSDP_TOOLS_COMMANDS_CKPT_PRUNE_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set. Returns the exit status.
int RunPrune(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_PRUNE_H_
