// SPDX-License-Identifier: Apache-2.0
//
// StoreFrame: a message between a store's client and its server. On the wire, little-endian:
//
//   byte 0       4       8            12             16        24
//        | magic | kind  | key bytes  | value bytes  | number  | key | value
//
// A frame with another magic, or longer than the limits, is refused before anything is allocated for it.
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

// `kind` of a request; `kind` of a reply is the absl::StatusCode of its outcome. Never renumber: ranks of one job may
// run different builds.
enum class StoreRequest : uint32_t {
  // 1 was a hello without the process of the client.
  kSet = 2,    // key, value
  kGet = 3,    // key, number = milliseconds to wait, -1 for ever; the reply has the value, or kDeadlineExceeded
  kAdd = 4,    // key, number = the summand; the reply's number is the sum
  kLeave = 5,  // from now on, the end of this connection is not a failure
  kHello = 6,  // first on a connection: the client (store_member.h); the reply has the server
  kWho = 7,    // as kHello, but the client does not join
  // key, value = this rank's blob, number = milliseconds to wait for the other ranks, -1 for ever; the reply has all
  // blobs (store_gather.h), or kDeadlineExceeded, which names the missing ranks
  kGather = 8,
  // After this a connection has no more requests and replies. number = milliseconds between two heartbeats, value =
  // milliseconds of silence after which an end is lost. After the reply, both ends send heartbeats: the client kBeat,
  // the server kStoreBeat, and the server at most one of the other two replies of job_watch.h.
  kWatch = 9,
  kBeat = 10,    // no reply
  kGiveUp = 11,  // value = why this rank ends; no reply
};

// Kinds of the frames that the server sends to a connection that watches.
constexpr uint32_t kStoreBeat = 0;   // absl::StatusCode::kOk
constexpr uint32_t kStoreEnd = 1;    // kCancelled: rank 0 has left, and does not serve any more
constexpr uint32_t kStoreLoss = 14;  // kUnavailable: value = the verdict of watch_roster.h

struct StoreFrame {
  uint32_t kind = 0;
  int64_t number = 0;
  std::string key = {};
  std::string value = {};  // in a reply with an error: the error's message
};

// REQUIRES: key and value are within the limits of the frame's kind.
std::string EncodeStoreFrame(const StoreFrame& frame);

// The number of key and value bytes that follow this header of kStoreHeaderBytes bytes. kInvalidArgument for a wrong
// magic or a size beyond the limits; `max_value_bytes` is larger only for the reply to kGather.
absl::StatusOr<size_t> StoreBodyBytes(std::string_view header, size_t max_value_bytes = kMaxStoreValueBytes);

// Removes the first frame from `buffer` and returns it; nullopt while the frame is incomplete. Same errors as
// StoreBodyBytes.
absl::StatusOr<std::optional<StoreFrame>> TakeStoreFrame(std::string& buffer,
                                                         size_t max_value_bytes = kMaxStoreValueBytes);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_FRAME_H_
