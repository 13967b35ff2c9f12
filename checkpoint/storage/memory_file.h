// SPDX-License-Identifier: Apache-2.0
//
// MemoryFile: a sparse, anonymous file in memory (memfd). HDF5 lays out a file in it, so that the library never touches
// a disk: the metadata that it writes takes pages, the payload, which it never writes, does not.
#ifndef FSDP_CHECKPOINT_STORAGE_MEMORY_FILE_H_
#define FSDP_CHECKPOINT_STORAGE_MEMORY_FILE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

class MemoryFile {
 public:
  static absl::StatusOr<MemoryFile> Create();

  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  // For reading and writing while the MemoryFile lives, which closes it. No path can replace it: /proc need not be
  // mounted.
  int descriptor() const { return fd_; }

  absl::StatusOr<int64_t> Size() const;

  // Fills `out` with the bytes from `offset`; bytes that were not written or are beyond the end of the file are zero.
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const;

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}

  int fd_;  // -1 after a move
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_MEMORY_FILE_H_
