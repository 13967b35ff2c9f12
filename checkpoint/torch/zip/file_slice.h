// SPDX-License-Identifier: Apache-2.0
//
// FileSlice: a range of bytes of an open file, read with offsets from its own start. A torch archive is a whole file,
// or one of many in a file of a DCP directory. Does not own the file. Thread-safe.
#ifndef FSDP_CHECKPOINT_TORCH_ZIP_FILE_SLICE_H_
#define FSDP_CHECKPOINT_TORCH_ZIP_FILE_SLICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct FileSlice {
  const File* file = nullptr;
  int64_t begin = 0;
  int64_t nbytes = 0;

  // All of `file`.
  static absl::StatusOr<FileSlice> Whole(const File& file);

  // kDataLoss when the slice ends before.
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const;
  absl::StatusOr<std::string> ReadText(int64_t offset, int64_t length) const;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_ZIP_FILE_SLICE_H_
