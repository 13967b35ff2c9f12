// SPDX-License-Identifier: Apache-2.0
//
// MeetingHeader: the message of 32 bytes with which each collective over a network begins: every rank sends every other
// one the collective that it is about to run. Little-endian, like all hosts that this library runs on.
#ifndef FSDP_COLLECTIVES_NET_MEETING_H_
#define FSDP_COLLECTIVES_NET_MEETING_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/collective.h"

namespace fsdp {

// Up to this size the data are sent along with the headers, which saves one wait for the network, and in an all_reduce
// every rank sends everything to all.
inline constexpr int64_t kEagerBytes = 16 << 10;

struct MeetingHeader {
  // "FSN1"; a new layout gets a new number.
  static constexpr uint32_t kMagic = 0x314e5346;

  uint32_t magic = kMagic;
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t reduce_op = 0;
  uint8_t unused = 0;
  int32_t root = 0;
  uint32_t unused2 = 0;
  uint64_t sequence = 0;
  int64_t count = 0;

  static MeetingHeader Of(uint64_t sequence, const CollectiveSpec& spec);

  // The spec of `peer`. kDataLoss, naming the peer, if the bytes are not a header or belong to another collective than
  // number `wanted_sequence`: the ranks are then different versions of this program, or a message was lost.
  absl::StatusOr<CollectiveSpec> ToSpec(int peer, uint64_t wanted_sequence) const;
};

static_assert(sizeof(MeetingHeader) == 32);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_MEETING_H_
