// SPDX-License-Identifier: Apache-2.0
//
// MsgpackCursor: walks a file of MessagePack, value by value. A value is a token: its type, and a number or a length.
// The bytes of texts, binaries and extensions and the items of arrays and maps follow the token; the caller reads or
// skips them. Not thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_FLAX_MSGPACK_CURSOR_H_
#define FSDP_CHECKPOINT_FOREIGN_FLAX_MSGPACK_CURSOR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_cursor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

enum class MsgpackType : uint8_t { kNil, kBool, kInteger, kFloat, kText, kBinary, kArray, kMap, kExtension };

// "an integer", for messages.
std::string MsgpackTypeName(MsgpackType type);

struct MsgpackToken {
  MsgpackType type = MsgpackType::kNil;
  bool is_negative = false;  // of an integer: its bits are of an int64
  uint64_t integer = 0;      // of an integer; 1 of true
  double number = 0;         // of a float
  int64_t length = 0;        // bytes of a text, a binary and an extension; items of an array; pairs of a map
  int extension = 0;         // of an extension: its type
};

class MsgpackCursor {
 public:
  // Begins at byte 0. `file` must outlive it and have `nbytes` bytes.
  MsgpackCursor(const File& file, int64_t nbytes) : cursor_(file, nbytes, kBufferBytes) {}

  int64_t position() const { return cursor_.position(); }
  int64_t remaining() const { return cursor_.remaining(); }

  // kDataLoss, with the byte, when the file ends in the value, when it does not have as many bytes as the value states,
  // or for the byte that no value begins with.
  absl::StatusOr<MsgpackToken> Next();

  // The next value, which must have this type; an integer must not be negative. kDataLoss otherwise names `what`.
  absl::StatusOr<MsgpackToken> Expect(MsgpackType type, const char* what);

  // The bytes of a text, binary or extension of at most `max_bytes`; kDataLoss if it is longer.
  absl::StatusOr<std::string> Bytes(const MsgpackToken& token, int64_t max_bytes);
  absl::Status Skip(int64_t nbytes) { return cursor_.Skip(static_cast<uint64_t>(nbytes)); }

 private:
  static constexpr int64_t kBufferBytes = int64_t{16} << 10;

  absl::StatusOr<uint64_t> Number(int size);
  absl::StatusOr<MsgpackToken> Sized(MsgpackType type, int size);
  absl::StatusOr<MsgpackToken> Extension(int64_t length);
  absl::StatusOr<MsgpackToken> Scalar(uint8_t code);

  FileCursor cursor_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_FLAX_MSGPACK_CURSOR_H_
