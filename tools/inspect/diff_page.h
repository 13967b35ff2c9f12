// SPDX-License-Identifier: Apache-2.0
//
// DiffPage: one self-contained HTML page about two checkpoints: the kinds of difference, the relative change of each
// layer, the largest differences, dtypes, names that only one has, and a table of tensors. Its size is bounded, however
// large the models are.
#ifndef FSDP_TOOLS_INSPECT_DIFF_PAGE_H_
#define FSDP_TOOLS_INSPECT_DIFF_PAGE_H_

#include <cstddef>
#include <string>

#include "fsdp/checkpoint/diff.h"

namespace fsdp {

// The most tensors in the table, and names in each list: the largest differences, the first names.
inline constexpr size_t kMaxDiffRows = 400;
inline constexpr size_t kMaxDiffNames = 100;

// A checkpoint of a comparison.
struct DiffSide {
  std::string absolute_path;
  std::string what;  // "sharded, step 60, world size 4", "safetensors"
};

// The page, UTF-8. `report` lists equal tensors too (DiffOptions::list_equal). Pure.
std::string DiffPage(const DiffSide& a, const DiffSide& b, const DiffReport& report);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_DIFF_PAGE_H_
