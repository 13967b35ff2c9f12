// SPDX-License-Identifier: Apache-2.0
//
// CheckSameOnRanks: compares what each rank has been given or has found by itself: flags, files. Ranks that differ
// would otherwise train on a mixture, or meet in different collectives.
#ifndef FSDP_COLLECTIVES_GROUP_SAME_ON_RANKS_H_
#define FSDP_COLLECTIVES_GROUP_SAME_ON_RANKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

struct RankFact {
  std::string subject;     // "--lr"
  std::string value;       // "0.001"
  std::string place = {};  // where this rank has it from, for messages; not compared
};

// OK on every rank when all ranks pass equal facts in the same order. Otherwise kFailedPrecondition, the same on every
// rank: the first fact in which a rank differs from rank 0, both values, ranks and hosts, and `advice`:
//
//   --lr: 0.001 on rank 0 (host-a), 0.1 on rank 2 (host-b); expected the same on all ranks: start them with equal flags
//
// Collective; blocks for one exchange of the control plane.
absl::Status CheckSameOnRanks(ProcessGroup& group, const std::vector<RankFact>& mine, std::string_view advice);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_SAME_ON_RANKS_H_
