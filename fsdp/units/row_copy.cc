// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/row_copy.h"

#include <utility>

namespace fsdp {

// With fewer ranks than the layout's, a rank's chunk is as many neighbouring chunks of the layout as the ratio says:
// both orders keep the chunks of one parameter in the order of ranks, so larger rows need no other offsets.
RowCopy::Place RowCopy::PlaceOf(size_t index, int rank) const {
  const int64_t numel = layout_.chunk_numel(index) * layout_.world_size() / ranks_;
  const int64_t offset = layout_.parameters()[index].offset;
  return {.in_parameters = offset + rank * numel, .in_row = offset / ranks_, .numel = numel};
}

void RowCopy::Out(const Tensor& rows, const Tensor& parameters, const TensorOps& ops, Stream& stream) const {
  std::vector<IntervalCopy> copies;
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const Place place = PlaceOf(i, rank);
      copies.push_back({rank * row_numel() + place.in_row, place.in_parameters, place.numel});
    }
  }
  ops.CastDivideIntervals(rows, parameters, std::move(copies), 1, stream);
}

void RowCopy::In(const Tensor& parameters, const Tensor& rows, double divisor, const TensorOps& ops,
                 Stream& stream) const {
  std::vector<IntervalCopy> copies;
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const Place place = PlaceOf(i, rank);
      copies.push_back({place.in_parameters, rank * row_numel() + place.in_row, place.numel});
    }
  }
  ops.CastDivideIntervals(parameters, rows, std::move(copies), divisor, stream);
}

void RowCopy::InRow(const Tensor& parameters, int rank, const Tensor& row, const TensorOps& ops, Stream& stream) const {
  std::vector<IntervalCopy> copies;
  for (size_t i = 0; i < layout_.parameters().size(); ++i) {
    const Place place = PlaceOf(i, rank);
    copies.push_back({place.in_parameters, place.in_row, place.numel});
  }
  ops.CastDivideIntervals(parameters, row, std::move(copies), 1, stream);
}

}  // namespace fsdp
