// SPDX-License-Identifier: Apache-2.0
//
// FileCursor: reads a file from its beginning to its end through a buffer, for formats whose headers must be walked:
// small values are read, payloads are skipped. Every size is compared with the rest of the file before it is used. Not
// thread-safe.
#ifndef FSDP_CHECKPOINT_STORAGE_FILE_CURSOR_H_
#define FSDP_CHECKPOINT_STORAGE_FILE_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class FileCursor {
 public:
  // Begins at byte 0. `file` must outlive it and have `nbytes` bytes. `buffer_bytes` are read at a time: few if
  // payloads are between the values.
  FileCursor(const File& file, int64_t nbytes, int64_t buffer_bytes)
      : file_(file), nbytes_(nbytes), buffer_bytes_(buffer_bytes) {}

  int64_t position() const { return position_; }
  int64_t remaining() const { return nbytes_ - position_; }

  // kDataLoss, with both sizes, if the file ends less than `nbytes` bytes after the cursor.
  absl::Status CheckIsThere(uint64_t nbytes) const;

  // These advance the cursor. Errors as CheckIsThere, and of reading.
  absl::Status Read(absl::Span<std::byte> out);
  absl::Status Skip(uint64_t nbytes);
  absl::StatusOr<uint8_t> Byte();
  absl::StatusOr<std::string> Text(uint64_t nbytes);  // the caller has bounded `nbytes`

 private:
  const File& file_;
  const int64_t nbytes_;
  const int64_t buffer_bytes_;
  int64_t position_ = 0;
  std::string buffer_;  // the bytes of the file from buffer_begin_
  int64_t buffer_begin_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FILE_CURSOR_H_
