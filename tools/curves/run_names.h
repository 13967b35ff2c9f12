// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_TOOLS_CURVES_RUN_NAMES_H_
#define FSDP_TOOLS_CURVES_RUN_NAMES_H_

#include <string>
#include <vector>

namespace fsdp {

// What people call the runs whose metrics are in the files at `paths`, which are absolute: the directories, as far as
// they tell the runs apart, and the name of the file only if it does or is not the usual one.
//
//   /home/me/gpt2/metrics.jsonl                             gpt2
//   /r/lr-1e-3/metrics.jsonl, /r/lr-3e-4/metrics.jsonl      lr-1e-3, lr-3e-4
//   /r/a/1.jsonl, /r/a/2.jsonl                              1.jsonl, 2.jsonl
//
// No two names are equal: a file that is given twice is numbered. Pure.
std::vector<std::string> RunNames(const std::vector<std::string>& paths);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_RUN_NAMES_H_
