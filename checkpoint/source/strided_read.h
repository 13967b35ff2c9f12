// SPDX-License-Identifier: Apache-2.0
//
// ReadStrided: reads the elements of a box from a file with one set of strides into memory with another. For transposed
// and sliced views, which torch.save stores unchanged. Contiguous runs are read directly to their place; others through
// a buffer of 1 MiB, and at most four times the wanted bytes are read, unless they are within one page.
#ifndef FSDP_CHECKPOINT_SOURCE_STRIDED_READ_H_
#define FSDP_CHECKPOINT_SOURCE_STRIDED_READ_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Strides of a row-major tensor, in elements, as torch writes them: as if dimensions of size 0 had size 1.
std::vector<int64_t> RowMajorStrides(const Shape& shape);

// One dimension of a box. Strides in elements.
struct StridedDim {
  int64_t count = 1;
  int64_t from_stride = 0;  // in the file; not negative, 0 for an expanded view
  int64_t to_stride = 0;    // in memory
};

struct StridedBox {
  int64_t offset = 0;        // in the file, in bytes, of the box's first element
  int64_t element_size = 1;  // in bytes
  std::vector<StridedDim> dims;
};

// Fills `out` with the bytes from `offset` on.
using ByteReader = std::function<absl::Status(int64_t offset, absl::Span<std::byte> out)>;

// Reads every element of `box`; the first one goes to `out`, the others to `out` plus their strides in memory. Blocks.
// The box must be inside the file; errors come from `read`.
absl::Status ReadStrided(const ByteReader& read, StridedBox box, std::byte* out);
absl::Status ReadStrided(const File& file, StridedBox box, std::byte* out);

// A tensor whose elements are in a file with given strides.
struct StridedView {
  int64_t offset = 0;        // in the file, in bytes, of the first element
  int64_t element_size = 1;  // in bytes
  Shape shape;
  absl::Span<const int64_t> strides;  // in elements, one for each dimension; not negative
};

// Reads elements `interval` of `view`, counted in row-major order, to `out`, contiguously. Blocks. The interval must be
// inside the shape and the view inside the file; errors come from `file`.
absl::Status ReadStridedInterval(const File& file, const StridedView& view, const Interval& interval, std::byte* out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_STRIDED_READ_H_
