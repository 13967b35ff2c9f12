// SPDX-License-Identifier: Apache-2.0
//
// ParameterPart: which part of a larger tensor a parameter is, in tensor-parallel layers: a range of the indices of one
// dimension. A cut of dimension 0 is one interval of the whole tensor; a cut of another dimension is one run for each
// combination of the indices before it:
//
//   whole [2, 6], part [2, 3] with dim 1, begin 3       whole    0 1 2 [3 4 5] 6 7 8 [9 10 11]
//                                                       part           0 1 2         3  4  5
#ifndef FSDP_NN_PARAMETER_PART_H_
#define FSDP_NN_PARAMETER_PART_H_

#include <cstdint>
#include <vector>

#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

struct ParameterPart {
  Shape whole;        // of the larger tensor
  int dim = 0;        // the dimension that is cut; the other sizes equal `whole`'s
  int64_t begin = 0;  // the first index that the part has

  bool operator==(const ParameterPart& other) const {
    return whole == other.whole && dim == other.dim && begin == other.begin;
  }
};

// The places of elements `interval` of a part of shape `shape` in the whole tensor: copies from the part (counted from
// its first element, not from the interval's) to the whole, in order, as long as possible. At most one for each
// combination of indices of the dimensions before `part.dim`.
std::vector<IntervalCopy> RunsInWhole(const Shape& shape, const ParameterPart& part, const Interval& interval);

}  // namespace fsdp

#endif  // FSDP_NN_PARAMETER_PART_H_
