// SPDX-License-Identifier: Apache-2.0
//
// The results of the same reductions in a group of threads, as the reference for groups that reach the ranks' memory in
// other ways: the order of summation is part of the contract, so results are equal bit for bit.
#ifndef FSDP_COLLECTIVES_CONFORMANCE_LOCAL_REFERENCE_H_
#define FSDP_COLLECTIVES_CONFORMANCE_LOCAL_REFERENCE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// Runs reduce_scatter and all_reduce of `n` elements a rank, in every dtype with every op, in `group` and in a group of
// as many threads, on values whose sums depend on the order. kDataLoss names the first that differs in a bit. Every
// rank of the group calls it. On host devices. Blocks.
absl::Status CompareReductionsWithLocal(ProcessGroup& group, int64_t n);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CONFORMANCE_LOCAL_REFERENCE_H_
