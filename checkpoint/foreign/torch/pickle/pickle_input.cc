// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_input.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::Status PickleInput::Error(absl::StatusCode code, const std::string& what) const {
  return absl::Status(code, absl::StrCat("byte ", opcode_at_, " of the pickle: ", what));
}

absl::StatusOr<uint8_t> PickleInput::TakeOpcode() {
  opcode_at_ = at_;
  return TakeByte();
}

absl::StatusOr<uint8_t> PickleInput::TakeByte() {
  FSDP_ASSIGN_OR_RETURN(const std::string_view byte, Take(1));
  return static_cast<uint8_t>(byte[0]);
}

// `count` comes from the file and may be anything below 2^64: it is compared with the remaining bytes, and added to at_
// only once it is known to fit.
absl::StatusOr<std::string_view> PickleInput::Take(uint64_t count) {
  if (count > bytes_.size() - at_) {
    return Broken(absl::StrCat("it ends before the next ", count, " bytes: it is truncated"));
  }
  const std::string_view taken = bytes_.substr(at_, count);
  at_ += count;
  return taken;
}

absl::StatusOr<uint64_t> PickleInput::TakeUnsigned(int nbytes) {
  FSDP_ASSIGN_OR_RETURN(const std::string_view bytes, Take(nbytes));
  uint64_t value = 0;
  for (int i = 0; i < nbytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return value;
}

absl::StatusOr<std::string_view> PickleInput::TakeLine() {
  // Otherwise each of many lines without an end would be searched to the end of the file.
  constexpr size_t kMaxLine = 4096;
  const size_t end = bytes_.substr(at_, kMaxLine).find('\n');
  if (end == std::string_view::npos) return Broken("a line without an end");
  const std::string_view line = bytes_.substr(at_, end);
  at_ += end + 1;
  return line;
}

// Accepts an opcode that crosses the end of its frame, which Python refuses, because it is harmless here.
absl::Status PickleInput::SkipFrame() {
  FSDP_ASSIGN_OR_RETURN(const uint64_t length, TakeUnsigned(8));
  if (length > bytes_.size() - at_) return Broken(absl::StrCat("a frame of ", length, " bytes: it is truncated"));
  return absl::OkStatus();
}

}  // namespace fsdp
