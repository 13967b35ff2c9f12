// SPDX-License-Identifier: Apache-2.0
//
// CheckpointPage: one self-contained HTML page about a checkpoint: which file holds which tensors, sizes per layer, the
// distribution of values, the optimizer's moments, a table of tensors, and what the checkpoint records about its run.
// It loads nothing, is complete without its script, which searches and sorts the table, and has a bounded size: about
// two megabytes at most, however large the model is.
#ifndef FSDP_TOOLS_INSPECT_CKPT_PAGE_H_
#define FSDP_TOOLS_INSPECT_CKPT_PAGE_H_

#include <string>

#include "fsdp/tools/inspect/checkpoint_layers.h"
#include "fsdp/tools/inspect/ckpt_summary.h"
#include "fsdp/tools/inspect/run_facts.h"

namespace fsdp {

// The page, UTF-8. `statistics` are of the tensors of `summary`, by key; charts leave out tensors that it lacks. Pure.
std::string CheckpointPage(const CheckpointSummary& summary, const TensorStatistics& statistics, const RunFacts& facts);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_CKPT_PAGE_H_
