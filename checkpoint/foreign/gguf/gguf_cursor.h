// SPDX-License-Identifier: Apache-2.0
//
// GgufCursor: reads the numbers and texts at the beginning of a GGUF file one after the other, so that a long
// vocabulary is never in memory as a whole. Numbers are little-endian or big-endian, as the file. Not thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_CURSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_cursor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// Keys, texts and tensor infos of one file. The largest vocabularies have about 20 MB.
inline constexpr int64_t kMaxGgufHeaderBytes = int64_t{256} << 20;

class GgufCursor {
 public:
  // Begins at byte 0. `file` must outlive it and have `nbytes` bytes.
  GgufCursor(const File& file, int64_t nbytes) : cursor_(file, nbytes, kBufferBytes) {}

  int64_t position() const { return cursor_.position(); }
  int64_t remaining() const { return cursor_.remaining(); }

  // Numbers from here on are big-endian.
  void SetBigEndian() { is_big_endian_ = true; }

  // All of these: kDataLoss when the file ends before, or the header is longer than kMaxGgufHeaderBytes.
  absl::StatusOr<uint8_t> U8();
  absl::StatusOr<uint16_t> U16();
  absl::StatusOr<uint32_t> U32();
  absl::StatusOr<uint64_t> U64();
  absl::Status Read(absl::Span<std::byte> out);
  absl::Status Skip(uint64_t nbytes);

  // A text with its length before it, of at most `max_bytes` bytes.
  absl::StatusOr<std::string> Text(int64_t max_bytes);

 private:
  static constexpr int64_t kBufferBytes = int64_t{256} << 10;

  absl::StatusOr<uint64_t> Number(int size);
  absl::Status CheckIsThere(uint64_t nbytes) const;

  FileCursor cursor_;
  bool is_big_endian_ = false;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_GGUF_GGUF_CURSOR_H_
