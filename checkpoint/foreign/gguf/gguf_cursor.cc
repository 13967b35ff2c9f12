// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/gguf_cursor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

// Every length from the file passes here before memory is taken for it.
absl::Status GgufCursor::CheckIsThere(uint64_t nbytes) const {
  if (nbytes > static_cast<uint64_t>(remaining())) {
    return absl::DataLossError(absl::StrCat("it states ", nbytes, " more bytes at byte ", position_,
                                            ", but the file has ", nbytes_, ": it is truncated or damaged"));
  }
  if (static_cast<int64_t>(nbytes) > kMaxGgufHeaderBytes - position_) {
    return absl::DataLossError(
        absl::StrCat("its keys and names have more than ", kMaxGgufHeaderBytes, " bytes, which no model has"));
  }
  return absl::OkStatus();
}

absl::Status GgufCursor::Read(absl::Span<std::byte> out) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(out.size()));
  while (!out.empty()) {
    if (position_ < buffer_begin_ || position_ >= buffer_begin_ + std::ssize(buffer_)) {
      buffer_.resize(std::min(kBufferBytes, remaining()));
      buffer_begin_ = position_;
      FSDP_RETURN_IF_ERROR(
          file_.Read(position_, absl::MakeSpan(reinterpret_cast<std::byte*>(buffer_.data()), buffer_.size())));
    }
    const int64_t from = position_ - buffer_begin_;
    const int64_t copied = std::min<int64_t>(std::ssize(buffer_) - from, std::ssize(out));
    std::memcpy(out.data(), buffer_.data() + from, copied);
    position_ += copied;
    out.remove_prefix(copied);
  }
  return absl::OkStatus();
}

absl::Status GgufCursor::Skip(uint64_t nbytes) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(nbytes));
  position_ += static_cast<int64_t>(nbytes);
  return absl::OkStatus();
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
        absl::StrCat("a text at byte ", position_, " has ", nbytes, " bytes, expected at most ", max_bytes));
  }
  std::string text(nbytes, '\0');
  FSDP_RETURN_IF_ERROR(Read(absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

}  // namespace fsdp
