// SPDX-License-Identifier: Apache-2.0
//
// ProtobufCursor: walks the fields of a message in protobuf's wire format, and of the messages in it, without a schema
// and without memory for what is skipped. A field is a number and a value: an integer, or a length of bytes that
// follow, which the caller reads, skips, or walks as a message. Not thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_ONNX_PROTOBUF_CURSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_ONNX_PROTOBUF_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_cursor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The longest message that protobuf writes.
inline constexpr int64_t kMaxProtobufBytes = (int64_t{1} << 31) - 1;

// The values are on the wire.
enum class ProtobufWire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct ProtobufField {
  int number = 0;
  ProtobufWire wire = ProtobufWire::kVarint;
  uint64_t integer = 0;  // of a varint and of a fixed number
  ByteRange range;       // of the value; for kBytes, the cursor is at its beginning
};

class ProtobufCursor {
 public:
  // Begins at byte 0. `file` must outlive it and have `nbytes` bytes.
  ProtobufCursor(const File& file, int64_t nbytes) : cursor_(file, nbytes, kBufferBytes) {}

  int64_t position() const { return cursor_.position(); }

  // The next field of the message that ends at `end`, which is behind the cursor. kDataLoss, with the byte, for a value
  // that ends behind `end`, for a wire type that protobuf does not write any more, and for a number of more than 64
  // bits.
  absl::StatusOr<ProtobufField> Next(int64_t end);

  // The bytes of a kBytes field of at most `max_bytes`; kDataLoss, with `what`, if it is longer or of another wire
  // type.
  absl::StatusOr<std::string> Text(const ProtobufField& field, int64_t max_bytes, const char* what);

  absl::Status Read(absl::Span<std::byte> out) { return cursor_.Read(out); }

  // A number of seven bits in each byte; kDataLoss if it has more than 64.
  absl::StatusOr<uint64_t> Varint();

  // Moves behind the value of `field`.
  absl::Status Skip(const ProtobufField& field);

 private:
  static constexpr int64_t kBufferBytes = int64_t{16} << 10;

  absl::StatusOr<uint64_t> Fixed(int size);

  FileCursor cursor_;
};

// kDataLoss, naming `what`, unless the field has this wire type.
absl::Status CheckWire(const ProtobufField& field, ProtobufWire wire, const char* what);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ONNX_PROTOBUF_CURSOR_H_
