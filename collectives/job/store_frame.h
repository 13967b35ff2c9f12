// SPDX-License-Identifier: Apache-2.0
//
// StoreFrame: a message between a store's client and its server. On the wire: a header of 24 bytes, little-endian
// (magic, kind, bytes of key, bytes of value: 4 each; number: 8), then key and value. What is not of this form, or
// longer than the limits, is refused before anything is allocated for it.
#ifndef FSDP_COLLECTIVES_JOB_STORE_FRAME_H_
#define FSDP_COLLECTIVES_JOB_STORE_FRAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace fsdp {

constexpr size_t kMaxStoreKeyBytes = 1024;
constexpr size_t kMaxStoreValueBytes = 1 << 20;
constexpr size_t kStoreHeaderBytes = 24;

// What a request asks for; a reply has the absl::StatusCode of its outcome in the same place. Never renumber.
enum class StoreRequest : uint32_t {
  kHello = 1,  // first on a connection: number = rank, key = job, value = world size
  kSet = 2,    // key, value
  kGet = 3,    // key, number = milliseconds to wait for it, -1 for ever; the reply has the value, or kDeadlineExceeded
  kAdd = 4,    // key, number = what to add; the reply's number is the sum
  kLeave = 5,  // this connection's end will be no failure
};

struct StoreFrame {
  uint32_t kind = 0;
  int64_t number = 0;
  std::string key = {};
  std::string value = {};  // of a reply with an error: its message
};

// Precondition: key and value are within the limits.
std::string EncodeStoreFrame(const StoreFrame& frame);

// Key and value bytes that follow this header. kInvalidArgument for a wrong magic or a size beyond the limits.
absl::StatusOr<size_t> StoreBodyBytes(std::string_view header);

// Takes the first frame off `buffer`; nullopt while it is not whole. Errors as StoreBodyBytes.
absl::StatusOr<std::optional<StoreFrame>> TakeStoreFrame(std::string& buffer);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_FRAME_H_
