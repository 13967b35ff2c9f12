// SPDX-License-Identifier: Apache-2.0
//
// BoxesOf: an interval of row-major elements as boxes of the tensor, the form that HDF5 requires. Whole rows are one
// box; a flat slice that cuts rows is at most 2 * rank - 1. Pure arithmetic.
#ifndef FSDP_TENSOR_BOX_H_
#define FSDP_TENSOR_BOX_H_

#include <cstdint>
#include <vector>

#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// The elements with start[d] <= index[d] < start[d] + count[d]; both have one entry per dimension.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> count;
};

// The boxes in row-major order: no box when `interval` is empty, one box without dimensions for a scalar. Precondition:
// `interval` is inside the shape. O(rank) boxes.
std::vector<Box> BoxesOf(const Shape& shape, const Interval& interval);

// True when `interval` is whole rows of the first dimension, so that the part is itself a tensor of the same rank.
bool IsWholeRows(const Shape& shape, const Interval& interval);

// The sizes of the dataset that holds `interval`: its rows if it consists of whole rows, else one dimension of its
// elements.
std::vector<int64_t> PartDims(const Shape& shape, const Interval& interval);

}  // namespace fsdp

#endif  // FSDP_TENSOR_BOX_H_
