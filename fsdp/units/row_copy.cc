// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/row_copy.h"

#include <utility>

#include "fsdp/fsdp/units/unit_dtypes.h"

namespace fsdp {

// With fewer ranks than the layout's, a rank's chunk is several neighbouring chunks of the layout, by the ratio. So the
// chunks before one parameter take a part of its offset that is as large as the rank's part of everything.
std::vector<IntervalCopy> RowCopy::ToRow(int rank) const {
  std::vector<IntervalCopy> copies;
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    const int64_t offset = layout_.parameters()[i].offset;
    for (const IntervalCopy& run : layout_.ChunkRuns(i, rank, ranks_)) {
      copies.push_back({offset + run.from, offset / ranks_ + run.to, run.numel});
    }
  }
  return copies;
}

void RowCopy::Out(const Tensor& rows, const Tensor& parameters, const TensorOps& ops, Stream& stream) const {
  std::vector<IntervalCopy> copies;
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const IntervalCopy& copy : ToRow(rank)) {
      copies.push_back({rank * row_stride_ + copy.to, copy.from, copy.numel});
    }
  }
  CopyIntervals(rows, parameters, std::move(copies), 1, ops, stream);
}

void RowCopy::In(const Tensor& parameters, const Tensor& rows, double divisor, const TensorOps& ops,
                 Stream& stream) const {
  std::vector<IntervalCopy> copies;
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const IntervalCopy& copy : ToRow(rank)) {
      copies.push_back({copy.from, rank * row_stride_ + copy.to, copy.numel});
    }
  }
  CopyIntervals(parameters, rows, std::move(copies), divisor, ops, stream);
}

void RowCopy::InRow(const Tensor& parameters, int rank, const Tensor& row, const TensorOps& ops, Stream& stream) const {
  CopyIntervals(parameters, row, ToRow(rank), 1, ops, stream);
}

void CopyIntervals(const Tensor& from, const Tensor& to, std::vector<IntervalCopy> copies, double divisor,
                   const TensorOps& ops, Stream& stream) {
  if (IsComputed(from.dtype())) return ops.CastDivideIntervals(from, to, std::move(copies), divisor, stream);
  const int64_t itemsize = SizeOf(from.dtype());
  for (const IntervalCopy& copy : copies) {
    stream.CopyAsync(static_cast<std::byte*>(to.data()) + copy.to * itemsize,
                     static_cast<const std::byte*>(from.data()) + copy.from * itemsize, copy.numel * itemsize);
  }
  stream.Run([from, to] { return absl::OkStatus(); });  // holds both until the copies have run
}

}  // namespace fsdp
