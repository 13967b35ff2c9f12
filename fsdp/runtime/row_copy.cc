// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/row_copy.h"

namespace fsdp {

RowCopy::Place RowCopy::PlaceOf(size_t index, int rank) const {
  const int64_t numel = layout_.chunk_numel(index) * layout_.world_size() / ranks_;
  const int64_t offset = layout_.parameters()[index].offset;
  const int64_t in_row = offset / ranks_;
  return {{offset + rank * numel, offset + (rank + 1) * numel}, {in_row, in_row + numel}};
}

Interval RowCopy::InRows(const Place& place, int rank) const {
  return {rank * row_numel() + place.in_row.begin, rank * row_numel() + place.in_row.end};
}

void RowCopy::Out(const Tensor& rows, const Tensor& parameters, const TensorOps& ops, Stream& stream) const {
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const Place place = PlaceOf(i, rank);
      ops.CastDivide(rows.Slice(InRows(place, rank)), parameters.Slice(place.in_parameters), 1, stream);
    }
  }
}

void RowCopy::In(const Tensor& parameters, const Tensor& rows, double divisor, const TensorOps& ops,
                 Stream& stream) const {
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const Place place = PlaceOf(i, rank);
      ops.CastDivide(parameters.Slice(place.in_parameters), rows.Slice(InRows(place, rank)), divisor, stream);
    }
  }
}

void RowCopy::InRow(const Tensor& parameters, int rank, const Tensor& row, const TensorOps& ops, Stream& stream) const {
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    const Place place = PlaceOf(i, rank);
    ops.CastDivide(parameters.Slice(place.in_parameters), row.Slice(place.in_row), 1, stream);
  }
}

}  // namespace fsdp
