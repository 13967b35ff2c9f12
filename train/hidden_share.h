// SPDX-License-Identifier: Apache-2.0
//
// HiddenShare: the share of a rank's communication that was free, because the rank computed in the meantime.
#ifndef FSDP_TRAIN_HIDDEN_SHARE_H_
#define FSDP_TRAIN_HIDDEN_SHARE_H_

#include <optional>
#include <vector>

#include "fsdp/tensor/trace.h"

namespace fsdp {

// The share, from 0 to 1, of the time in collectives (all-gathers, reductions) of one rank's `spans` during which
// another span of it computes: 1 - exposed / total. Waiting for other ranks in a collective counts as time in it. Spans
// that contain others, such as the root's forward, do not count as computing, since they also contain the waiting
// between those. Empty if no time was spent in collectives. Pure; O(n log n).
std::optional<double> HiddenShare(const std::vector<TraceSpan>& spans);

}  // namespace fsdp

#endif  // FSDP_TRAIN_HIDDEN_SHARE_H_
