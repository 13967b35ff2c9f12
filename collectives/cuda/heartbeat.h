// SPDX-License-Identifier: Apache-2.0
//
// Heartbeat: what one rank tells the others in a round of collective_watch.h, as a value and as bytes.
#ifndef FSDP_COLLECTIVES_CUDA_HEARTBEAT_H_
#define FSDP_COLLECTIVES_CUDA_HEARTBEAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/collectives/group/collective.h"

namespace fsdp {

struct Heartbeat {
  bool leaves = false;
  uint64_t issued = 0;                                     // the number of its last call
  uint64_t begun = 0;                                      // of the last one that a stream got to
  CollectiveId stalled;                                    // a call beyond its deadline; sequence 0: none
  absl::Status fault;                                      // why this rank gives up
  std::vector<std::pair<uint64_t, CollectiveSpec>> calls;  // those since the last heartbeat

  // Bytes for ranks of one kind of machine.
  std::string Encode() const;

  // kInternal for what Encode did not make.
  static absl::StatusOr<Heartbeat> Decode(std::string_view bytes);
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_HEARTBEAT_H_
