// SPDX-License-Identifier: Apache-2.0
//
// ReadJoined: a tensor that is put together from parts in other places: the shards of ranks, each in a file of its own.
//
//   pieces       boxes that cover the tensor once; each is the elements of a part, in row-major order of the box
//   flat shards  pieces of the tensor's elements as one dimension: Shape{numel}
//
// Which piece is where is the format's knowledge. Pure but for the reader.
#ifndef FSDP_CHECKPOINT_SOURCE_JOINED_TENSOR_H_
#define FSDP_CHECKPOINT_SOURCE_JOINED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/tensor/box.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

struct JoinedPiece {
  Box box;            // in the joined tensor
  int64_t part = 0;   // a number by which the reader knows the part
  int64_t first = 0;  // element of the part, of the box's first; the others follow without gaps
};

// Fills `out` with whole elements of part `part`, from byte `offset` of its elements on.
using PartReader = std::function<absl::Status(int64_t part, int64_t offset, absl::Span<std::byte> out)>;

// Reads elements `interval` of the tensor to `out`, contiguously, in few reads of each part. Blocks. Each element is
// written once if CheckPieces is OK. Errors come from `read`.
absl::Status ReadJoined(const Shape& shape, int64_t element_size, absl::Span<const JoinedPiece> pieces,
                        const Interval& interval, const PartReader& read, std::byte* out);

// OK if the pieces are inside the shape and cover it exactly once; else kDataLoss with the first piece that does not
// fit, or with the number of elements that are missing. O(n log n) for n pieces along one dimension, O(n^2) otherwise.
absl::Status CheckPieces(const Shape& shape, absl::Span<const JoinedPiece> pieces);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_JOINED_TENSOR_H_
