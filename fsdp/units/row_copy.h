// SPDX-License-Identifier: Apache-2.0
//
// RowCopy: copies between the two orders of a unit whose parameters are cut one by one: [parameters, chunks of all
// ranks], of which parameters and gradients are views, and [ranks, chunks of all parameters], in which collectives
// work. All copies of a unit are one kernel, CastDivideIntervals, which may also cast and divide; elements of a dtype
// that no kernel takes (IsComputed) are copied as bytes.
#ifndef FSDP_FSDP_UNITS_ROW_COPY_H_
#define FSDP_FSDP_UNITS_ROW_COPY_H_

#include <cstdint>
#include <vector>

#include "fsdp/fsdp/units/shard_layout.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class RowCopy {
 public:
  // For the layout's own ranks, or for `ranks` that divide them: the same buffer cut into fewer, larger rows. The
  // layout must outlive it.
  explicit RowCopy(const ShardLayout& layout) : RowCopy(layout, layout.world_size()) {}
  RowCopy(const ShardLayout& layout, int ranks) : RowCopy(layout, ranks, layout.padded_numel() / ranks) {}

  // For rows that begin `row_stride` elements after each other, with elements of others in between.
  RowCopy(const ShardLayout& layout, int ranks, int64_t row_stride)
      : layout_(layout), ranks_(ranks), row_stride_(row_stride) {}

  // Copies the chunks of every rank from `rows` to `parameters`, of padded_numel elements, for the layout that an
  // all-gather wrote. Here and below the tensors may differ in dtype and must not overlap; the call does not block.
  void Out(const Tensor& rows, const Tensor& parameters, const TensorOps& ops, Stream& stream) const;

  // The reverse of Out; each element is divided by `divisor`.
  void In(const Tensor& parameters, const Tensor& rows, double divisor, const TensorOps& ops, Stream& stream) const;

  // Copies one rank's chunks from `parameters` to `row`, which has row_numel() elements.
  void InRow(const Tensor& parameters, int rank, const Tensor& row, const TensorOps& ops, Stream& stream) const;

  // Elements of a row, the part of a rank in a collective: the sum of its chunks, padding included.
  int64_t row_numel() const { return layout_.padded_numel() / ranks_; }

 private:
  // Copies of all chunks of one rank from `parameters` to its row.
  std::vector<IntervalCopy> ToRow(int rank) const;

  const ShardLayout& layout_;
  const int ranks_;
  const int64_t row_stride_;
};

// to[copy.to, ...) = from[copy.from, ...) for each of `copies`, divided by `divisor`, which is 1 for dtypes that no
// kernel takes; these must be equal. Does not block.
void CopyIntervals(const Tensor& from, const Tensor& to, std::vector<IntervalCopy> copies, double divisor,
                   const TensorOps& ops, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_FSDP_UNITS_ROW_COPY_H_
