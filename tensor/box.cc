// SPDX-License-Identifier: Apache-2.0
//
// An interval [begin, end) of row-major elements as boxes, by recursion over the dimensions. At dimension d, with
// blocks of inner_[d] elements below each index:
//
//   begin ... | whole blocks of inner_[d] ... | ... end
//    head     |          middle               | tail
//
// The middle is one box over a range of index d and all of the dimensions below. Head and tail are each inside one
// block and go one dimension deeper. Each dimension but the last adds at most a head and a tail, hence at most 2 * rank
// - 1 boxes.
#include "fsdp/tensor/box.h"

namespace fsdp {
namespace {

// Collects the boxes of a shape, dimension by dimension.
class BoxCollector {
 public:
  explicit BoxCollector(const Shape& shape) : shape_(shape), start_(shape.rank(), 0), inner_(shape.rank(), 1) {
    for (int d = shape.rank() - 2; d >= 0; --d) inner_[d] = inner_[d + 1] * shape.dim(d + 1);
  }

  // Elements [begin, end) of the block that start_[0, d) selects.
  void Collect(int d, int64_t begin, int64_t end) {
    if (begin == end) return;
    int64_t first = begin / inner_[d];
    const int64_t last = end / inner_[d];
    const int64_t first_offset = begin % inner_[d];
    const int64_t last_offset = end % inner_[d];
    if (first == last) return CollectInside(d, first, first_offset, last_offset);
    if (first_offset != 0) CollectInside(d, first++, first_offset, inner_[d]);
    if (first < last) Add(d, first, last - first);
    if (last_offset != 0) CollectInside(d, last, 0, last_offset);
  }

  std::vector<Box> Take() { return std::move(boxes_); }

 private:
  void CollectInside(int d, int64_t index, int64_t begin, int64_t end) {
    start_[d] = index;
    Collect(d + 1, begin, end);
  }

  // Indices [first, first + count) of dimension d, all of those after it.
  void Add(int d, int64_t first, int64_t count) {
    Box box;
    for (int i = 0; i < shape_.rank(); ++i) {
      box.start.push_back(i < d ? start_[i] : i == d ? first : 0);
      box.count.push_back(i < d ? 1 : i == d ? count : shape_.dim(i));
    }
    boxes_.push_back(std::move(box));
  }

  const Shape& shape_;
  std::vector<int64_t> start_;
  std::vector<int64_t> inner_;  // elements per index of each dimension
  std::vector<Box> boxes_;
};

}  // namespace

std::vector<Box> BoxesOf(const Shape& shape, const Interval& interval) {
  if (interval.empty()) return {};
  if (shape.rank() == 0) return {Box{}};
  BoxCollector collector(shape);
  collector.Collect(0, interval.begin, interval.end);
  return collector.Take();
}

bool IsWholeRows(const Shape& shape, const Interval& interval) {
  const int64_t row = shape.row_numel();
  return row == 0 || (interval.begin % row == 0 && interval.end % row == 0);
}

std::vector<int64_t> PartDims(const Shape& shape, const Interval& interval) {
  if (interval == Interval{0, shape.numel()}) return {shape.dims().begin(), shape.dims().end()};
  if (!IsWholeRows(shape, interval) || shape.numel() == 0) return {interval.size()};
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[0] = interval.size() / shape.row_numel();
  return dims;
}

}  // namespace fsdp
