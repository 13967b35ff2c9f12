// SPDX-License-Identifier: Apache-2.0
//
// FileSlice: a range of bytes of an open file, read with offsets from its own start. A torch archive is a whole file,
// or one of many in a file of a DCP directory. Does not own the file. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_ZIP_FILE_SLICE_H_
#define FSDP_CHECKPOINT_FOREIGN_ZIP_FILE_SLICE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Bytes [begin, begin + nbytes) of `file`, which must outlive the slice.
struct FileSlice {
  const File* file = nullptr;
  int64_t begin = 0;
  int64_t nbytes = 0;

  // All of `file`, whose size is queried once; errors as File::Size.
  static absl::StatusOr<FileSlice> Whole(const File& file);

  // Fills `out` from byte `offset` of the slice. kDataLoss when the slice ends earlier: offsets come from the archive,
  // so a wrong one is damage and not an error of the caller.
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const;

  // The same as a string. A damaged archive may request any length: the string is allocated only if the slice is that
  // long.
  absl::StatusOr<std::string> ReadText(int64_t offset, int64_t length) const;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_FILE_SLICE_H_
