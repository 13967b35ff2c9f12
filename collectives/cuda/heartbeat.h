// SPDX-License-Identifier: Apache-2.0
//
// Heartbeat: the message of one rank to the others in a round of collective_watch.h, as a value and as bytes. Sequence
// numbers count the group's calls, from 1; 0 means none.
#ifndef FSDP_COLLECTIVES_CUDA_HEARTBEAT_H_
#define FSDP_COLLECTIVES_CUDA_HEARTBEAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/collective.h"

namespace fsdp {

// A value: it owns everything, and no field refers to another rank's memory.
struct Heartbeat {
  bool leaves = false;                                     // this rank destroys its group; this is its last heartbeat
  uint64_t issued = 0;                                     // the last call that this rank made
  uint64_t begun = 0;                                      // the last call that a stream of this rank has reached
  CollectiveId stalled;                                    // a call past its deadline; sequence 0: none
  absl::Status fault;                                      // the reason why this rank gives up; OK: it does not
  std::vector<std::pair<uint64_t, CollectiveSpec>> calls;  // the calls made since the last heartbeat

  // Bytes that only ranks on the same kind of machine can decode: a header of fixed size, the calls, then the text of
  // the fault.
  std::string Encode() const;

  // kInternal if the bytes are shorter than their header specifies, so Encode did not make them. Does not allocate more
  // memory than the bytes hold.
  static absl::StatusOr<Heartbeat> Decode(std::string_view bytes);
};

// How long a rank waits between two rounds, and so how long a fault of one rank takes to be known to all: 20 ms, or 5
// ms for each host if that is more, because each round is messages between all hosts.
absl::Duration HeartbeatInterval(int hosts);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_HEARTBEAT_H_
