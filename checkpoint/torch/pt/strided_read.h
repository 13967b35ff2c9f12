// SPDX-License-Identifier: Apache-2.0
//
// ReadStrided: elements of a box that lie in a file with one set of strides, to memory with another. Contiguous runs
// are read straight to their place; others by way of a small buffer, with never more read than a few times what is
// wanted.
#ifndef FSDP_CHECKPOINT_TORCH_PT_STRIDED_READ_H_
#define FSDP_CHECKPOINT_TORCH_PT_STRIDED_READ_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct StridedDim {
  int64_t count = 1;
  int64_t from_stride = 0;  // in the file, in elements; not negative
  int64_t to_stride = 0;    // in memory
};

struct StridedBox {
  int64_t offset = 0;        // in the file, in bytes, of the box's first element
  int64_t element_size = 1;  // in bytes
  std::vector<StridedDim> dims;
};

// Every element of `box`, the first one to `out`.
absl::Status ReadStrided(const File& file, StridedBox box, std::byte* out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PT_STRIDED_READ_H_
