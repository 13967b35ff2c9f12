// SPDX-License-Identifier: Apache-2.0
//
// ckpt view SRC OUT.h5: somebody else's checkpoint as an HDF5 file, its bytes left where they are.
#ifndef FSDP_TOOLS_COMMANDS_CKPT_VIEW_H_
#define FSDP_TOOLS_COMMANDS_CKPT_VIEW_H_

#include "fsdp/base/command_line.h"

namespace fsdp {

// Runs with the flags that are set. Returns the exit status.
int RunView(const CommandLine& line);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_CKPT_VIEW_H_
