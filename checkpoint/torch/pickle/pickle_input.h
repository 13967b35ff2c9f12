// SPDX-License-Identifier: Apache-2.0
//
// PickleInput: the bytes of a pickle, taken from the front, never beyond their end; and errors that say at which
// opcode.
#ifndef FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_INPUT_H_
#define FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

class PickleInput {
 public:
  explicit PickleInput(std::string_view bytes) : bytes_(bytes) {}

  std::string_view bytes() const { return bytes_; }
  size_t at() const { return at_; }                // of the next byte
  size_t opcode_at() const { return opcode_at_; }  // of the opcode that TakeOpcode gave

  absl::StatusOr<uint8_t> TakeOpcode();
  absl::StatusOr<uint8_t> TakeByte();

  // kDataLoss when it ends before, as all below.
  absl::StatusOr<std::string_view> Take(uint64_t count);

  // A little-endian integer of at most 8 bytes.
  absl::StatusOr<uint64_t> TakeUnsigned(int nbytes);

  // Up to the next newline, which is taken too.
  absl::StatusOr<std::string_view> TakeLine();

  // FRAME: its length is only checked.
  absl::Status SkipFrame();

  // "byte 17 of the pickle: ...", 17 being the opcode's: kDataLoss, kInvalidArgument, kResourceExhausted.
  absl::Status Broken(const std::string& what) const { return Error(absl::StatusCode::kDataLoss, what); }
  absl::Status Refused(const std::string& what) const { return Error(absl::StatusCode::kInvalidArgument, what); }
  absl::Status Exceeded(const std::string& what) const { return Error(absl::StatusCode::kResourceExhausted, what); }

 private:
  absl::Status Error(absl::StatusCode code, const std::string& what) const;

  const std::string_view bytes_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_PICKLE_PICKLE_INPUT_H_
