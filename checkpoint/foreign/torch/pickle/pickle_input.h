// SPDX-License-Identifier: Apache-2.0
//
// PickleInput: the bytes of a pickle, consumed from the front, never beyond their end. It remembers the offset of the
// current opcode, so that every error can name it. Returned views are valid as long as the bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_INPUT_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// Does not own the bytes. Not thread-safe.
class PickleInput {
 public:
  explicit PickleInput(std::string_view bytes) : bytes_(bytes) {}

  std::string_view bytes() const { return bytes_; }
  // The offset of the next byte, and the offset of the opcode that TakeOpcode returned last.
  size_t at() const { return at_; }
  size_t opcode_at() const { return opcode_at_; }

  // The next byte, as the opcode that errors name from now on.
  absl::StatusOr<uint8_t> TakeOpcode();
  absl::StatusOr<uint8_t> TakeByte();

  // The next `count` bytes. kDataLoss if fewer are left, as for all functions below.
  absl::StatusOr<std::string_view> Take(uint64_t count);

  // A little-endian unsigned integer of `nbytes`, at most 8.
  absl::StatusOr<uint64_t> TakeUnsigned(int nbytes);

  // The bytes up to the next newline, which is consumed but not returned. kDataLoss without one within 4 KiB: the
  // lines of a pickle are names and decimal numbers.
  absl::StatusOr<std::string_view> TakeLine();

  // Skips the argument of FRAME. Frames let Python read ahead; here the length is only checked against the remaining
  // bytes.
  absl::Status SkipFrame();

  // Errors "byte 17 of the pickle: WHAT", with 17 the offset of the current opcode. Broken, kDataLoss: the bytes
  // are not a pickle. Refused, kInvalidArgument: they request an unsupported operation. Exceeded, kResourceExhausted: a
  // limit.
  absl::Status Broken(const std::string& what) const { return Error(absl::StatusCode::kDataLoss, what); }
  absl::Status Refused(const std::string& what) const { return Error(absl::StatusCode::kInvalidArgument, what); }
  absl::Status Exceeded(const std::string& what) const { return Error(absl::StatusCode::kResourceExhausted, what); }

 private:
  // The status with the byte of the current opcode in front of `what`.
  absl::Status Error(absl::StatusCode code, const std::string& what) const;

  const std::string_view bytes_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_INPUT_H_
