// SPDX-License-Identifier: Apache-2.0
//
// Interval: the only shard geometry of this project. A shard is a half-open range [begin, end) of the row-major
// elements of one named tensor; resharding is intersection of intervals. Pure arithmetic, no I/O.
#ifndef FSDP_TENSOR_INTERVAL_H_
#define FSDP_TENSOR_INTERVAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Plain value; nothing checks it when it is made. Functions that take intervals from files check them first
// (CheckCover).
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;  // not included; never below begin

  int64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool Contains(const Interval& other) const { return begin <= other.begin && other.end <= end; }

  // "[7752, 12336)"
  std::string ToString() const;

  bool operator==(const Interval& other) const { return begin == other.begin && end == other.end; }
  bool operator!=(const Interval& other) const { return !(*this == other); }
};

// The common part; empty (with begin == end) if the two do not overlap.
Interval Intersect(const Interval& a, const Interval& b);

// torch.chunk's rule on one dimension: chunk `index` of `count` of n elements has ceil(n / count) elements, the last
// non-empty one fewer, trailing ones none. Precondition: count > 0.
Interval ChunkOf(int64_t n, int count, int index);

// The elements of rank `rank`'s dim-0 chunk of a tensor: rows by ChunkOf. A scalar is wholly rank 0's. CHECK-fails for
// a rank outside [0, world_size).
Interval Dim0Chunk(const Shape& shape, int world_size, int rank);

// OK when `intervals`, in any order, cover [0, numel) exactly once (empty ones are ignored); else kDataLoss, naming the
// first hole or overlap: "elements [5, 9) are missing", "elements [2, 4) are held twice". An interval that ends before
// it begins, or is not inside [0, numel), is kDataLoss too. O(n log n) for n intervals.
absl::Status CheckCover(std::vector<Interval> intervals, int64_t numel);

// `numel` elements that go from element `from` of one flat tensor to element `to` of another.
struct IntervalCopy {
  int64_t from = 0;
  int64_t to = 0;
  int64_t numel = 0;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_INTERVAL_H_
