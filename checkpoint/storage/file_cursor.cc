// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/file_cursor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status FileCursor::CheckIsThere(uint64_t nbytes) const {
  if (nbytes <= static_cast<uint64_t>(remaining())) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("it states ", nbytes, " more bytes at byte ", position_,
                                          ", but the file has ", nbytes_, ": it is truncated or damaged"));
}

absl::Status FileCursor::Read(absl::Span<std::byte> out) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(out.size()));
  while (!out.empty()) {
    if (position_ < buffer_begin_ || position_ >= buffer_begin_ + std::ssize(buffer_)) {
      buffer_.resize(std::min(buffer_bytes_, remaining()));
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

absl::Status FileCursor::Skip(uint64_t nbytes) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(nbytes));
  position_ += static_cast<int64_t>(nbytes);
  return absl::OkStatus();
}

absl::StatusOr<uint8_t> FileCursor::Byte() {
  std::byte byte;
  FSDP_RETURN_IF_ERROR(Read(absl::MakeSpan(&byte, 1)));
  return static_cast<uint8_t>(byte);
}

absl::StatusOr<std::string> FileCursor::Text(uint64_t nbytes) {
  FSDP_RETURN_IF_ERROR(CheckIsThere(nbytes));
  std::string text(nbytes, '\0');
  FSDP_RETURN_IF_ERROR(Read(absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

}  // namespace fsdp
