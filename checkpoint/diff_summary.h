// SPDX-License-Identifier: Apache-2.0
//
// DiffSummary: the kinds of difference in a DiffReport, for a reader who wants to know first whether another dtype,
// other names or other values are meant, and the largest differences of values. Pure functions.
#ifndef FSDP_CHECKPOINT_DIFF_SUMMARY_H_
#define FSDP_CHECKPOINT_DIFF_SUMMARY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "fsdp/checkpoint/diff.h"

namespace fsdp {

struct DiffSummary {
  // Of these, in this order; empty if the two are equal:
  //   names      tensors whose names differ by a prefix (DiffReport::renamed)
  //   optimizer  only one side has optimizer state, and all that only one side has is that
  //   missing    other values that only one side has
  //   shapes
  //   dtypes     of equal values, or of values that are equal but for rounding to the other dtype
  //   values     beyond the tolerance
  //   structure  DiffReport::structure
  std::vector<std::string> kinds;

  // One for each kind, such as `dtypes: 57 tensors are float32 in A, bfloat16 in B; every value is equal`.
  std::vector<std::string> sentences;
};

DiffSummary SummariseDiff(const DiffReport& report);

// DiffReport::only_in_a and only_in_b without the names that the other side has under another prefix, about which the
// summary has one sentence.
struct OneSidedNames {
  std::vector<std::string> a;
  std::vector<std::string> b;
};

OneSidedNames NamesOfOneSide(const DiffReport& report);

// The `count` tensors, or all if they are fewer, whose values differ the most, within the tolerance or not: first the
// ones with NaN on one side, then by the largest |a - b|, then in the order of the report. They are part of `report`.
std::vector<const TensorDiff*> LargestDifferences(const DiffReport& report, size_t count);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_DIFF_SUMMARY_H_
