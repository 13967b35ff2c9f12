// SPDX-License-Identifier: Apache-2.0
//
// RunPage: one self-contained HTML page about the checkpoints of a run: what stands out, the change and the norm of
// each layer from step to step as maps of colours, and tables of steps and layers. Its size is bounded by kMaxRunSteps
// and kMaxLayerRows. It is complete without its scripts, which show the numbers at the pointer and sort the tables.
#ifndef FSDP_TOOLS_INSPECT_RUN_PAGE_H_
#define FSDP_TOOLS_INSPECT_RUN_PAGE_H_

#include <string>

#include "fsdp/tools/inspect/run_history.h"

namespace fsdp {

// The page, UTF-8. `absolute_path` is the ROOT's. Pure.
std::string RunPage(const std::string& absolute_path, const RunHistory& history);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_RUN_PAGE_H_
