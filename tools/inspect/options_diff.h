// SPDX-License-Identifier: Apache-2.0
//
// OptionsDiff: the differences between the runs that made two checkpoints, by the attributes that the checkpoints
// record. `ckpt inspect --diff_options` shows it. Pure.
#ifndef FSDP_TOOLS_INSPECT_OPTIONS_DIFF_H_
#define FSDP_TOOLS_INSPECT_OPTIONS_DIFF_H_

#include <string>
#include <vector>

#include "fsdp/tensor/run_metadata.h"
#include "fsdp/tools/inspect/ckpt_summary.h"

namespace fsdp {

struct OptionsDiff {
  struct Side {
    std::string path;
    bool is_recorded = false;  // false: the checkpoint records no attributes
  };
  Side a, b;

  // `saved` is A's value, `current` B's. Empty if a side records nothing.
  std::vector<AttributeDifference> differences;

  bool is_known() const { return a.is_recorded && b.is_recorded; }
  bool equal() const { return is_known() && differences.empty(); }
};

OptionsDiff CompareOptions(const CheckpointSummary& a, const CheckpointSummary& b);

// For people: a line for each difference, "options.lr: 0.001 -> 0.002", A's value first, and one of the result.
std::string OptionsDiffText(const OptionsDiff& diff);

// For programs: one JSON object. "equal" is null if a side records nothing.
std::string OptionsDiffJson(const OptionsDiff& diff);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_OPTIONS_DIFF_H_
