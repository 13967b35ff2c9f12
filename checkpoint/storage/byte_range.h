// SPDX-License-Identifier: Apache-2.0
//
// ByteRange, and the sizes of the blocks and pages in which files are read and written.
#ifndef FSDP_CHECKPOINT_STORAGE_BYTE_RANGE_H_
#define FSDP_CHECKPOINT_STORAGE_BYTE_RANGE_H_

#include <cstdint>

namespace fsdp {

// Files are read and written in blocks of this size; no block that has a digest is longer.
inline constexpr int64_t kBlockBytes = int64_t{4} << 20;

// A page of the page cache. Direct reads and writes begin and end at multiples of it.
inline constexpr int64_t kPageBytes = 4096;

// The number of blocks of kBlockBytes in `nbytes` bytes.
inline int64_t BlockCount(int64_t nbytes) { return (nbytes + kBlockBytes - 1) / kBlockBytes; }

// The numbers that addresses and file offsets must be multiples of for direct I/O: powers of two; 0 when the file does
// not support direct I/O.
struct DirectAlignment {
  int64_t memory = 0;
  int64_t offset = 0;  // of lengths too
};

// The bytes [offset, offset + nbytes) of a file.
struct ByteRange {
  int64_t offset = 0;
  int64_t nbytes = 0;

  int64_t end() const { return offset + nbytes; }
  bool operator==(const ByteRange& other) const { return offset == other.offset && nbytes == other.nbytes; }
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_BYTE_RANGE_H_
