// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_cursor.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// Every length from the file passes here before memory is taken for it.
absl::Status GgufCursor::CheckIsThere(uint64_t nbytes) const {
  FSDP_RETURN_IF_ERROR(cursor_.CheckIsThere(nbytes));
  if (static_cast<int64_t>(nbytes) > kMaxGgufHeaderBytes - position()) {
    return absl::DataLossError(
        absl::StrCat("its keys and names have more than ", kMaxGgufHeaderBytes, " bytes, which no model has"));
  }
  return absl::OkStatus();
}

absl::Status GgufCursor::Read(absl::Span<std::byte> out) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(out.size()));
  return cursor_.Read(out);
}

absl::Status GgufCursor::Skip(uint64_t nbytes) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(nbytes));
  return cursor_.Skip(nbytes);
}

absl::StatusOr<uint64_t> GgufCursor::Number(int size) {
  std::byte bytes[8];
  FSDP_RETURN_IF_ERROR(Read(absl::MakeSpan(bytes, size)));
  uint64_t number = 0;
  for (int i = 0; i < size; ++i) {
    number = number << 8 | static_cast<uint8_t>(bytes[is_big_endian_ ? i : size - 1 - i]);
  }
  return number;
}

absl::StatusOr<uint8_t> GgufCursor::U8() {
  FSDP_ASSIGN_OR_RETURN(const uint64_t number, Number(1));
  return static_cast<uint8_t>(number);
}

absl::StatusOr<uint16_t> GgufCursor::U16() {
  FSDP_ASSIGN_OR_RETURN(const uint64_t number, Number(2));
  return static_cast<uint16_t>(number);
}

absl::StatusOr<uint32_t> GgufCursor::U32() {
  FSDP_ASSIGN_OR_RETURN(const uint64_t number, Number(4));
  return static_cast<uint32_t>(number);
}

absl::StatusOr<uint64_t> GgufCursor::U64() { return Number(8); }

absl::StatusOr<std::string> GgufCursor::Text(int64_t max_bytes) {
  FSDP_ASSIGN_OR_RETURN(const uint64_t nbytes, U64());
  FSDP_RETURN_IF_ERROR(CheckIsThere(nbytes));
  if (static_cast<int64_t>(nbytes) > max_bytes) {
    return absl::DataLossError(
        absl::StrCat("a text at byte ", position(), " has ", nbytes, " bytes, expected at most ", max_bytes));
  }
  return cursor_.Text(nbytes);
}

}  // namespace fsdp
