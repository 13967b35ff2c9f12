// SPDX-License-Identifier: Apache-2.0
//
// The pages of HTML that ckpt inspect and diff write: each reads the values that it shows, with a progress line. A page
// appears under its name complete or not at all, and replaces a file of that name; the caller has called CheckOutput.
#ifndef FSDP_TOOLS_COMMANDS_PAGES_H_
#define FSDP_TOOLS_COMMANDS_PAGES_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/diff.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/inspect/ckpt_summary.h"

namespace fsdp {

// The page about the checkpoint of `summary`, to which it adds the tensors that were not wholly read.
absl::Status WriteCheckpointPage(const std::string& page, CheckpointSummary& summary);

// The page about the steps of the ROOT `summary.asked_for`. `summary` becomes the newest step whose values verify, and
// has the newer ones in `skipped`.
absl::Status WriteRunPage(const std::string& page, CheckpointSummary& summary);

// "sharded, step 60, world size 4" of a checkpoint of ours, else the format.
std::string KindOfSource(const TensorSource& source);

// The page about the differences `report` of `a` and `b`, which were opened from these paths.
struct ComparedSource {
  std::string path;
  const TensorSource& source;
};
absl::Status WriteDiffPage(const std::string& page, const ComparedSource& a, const ComparedSource& b,
                           const DiffReport& report);

}  // namespace fsdp

#endif  // FSDP_TOOLS_COMMANDS_PAGES_H_
