// SPDX-License-Identifier: Apache-2.0
//
// AgreedFlags: the flags of train_gpt that decide which calls the ranks make together. Ranks with other values would
// meet in different collectives, or train and save differently.
#ifndef FSDP_TRAIN_AGREED_FLAGS_H_
#define FSDP_TRAIN_AGREED_FLAGS_H_

#include <vector>

#include "fsdp/collectives/group/same_on_ranks.h"

namespace fsdp {

// All flags of train_flags.h with their values, by name, except: flags about only this process or host; flags whose
// files are compared by their contents later; and paths that hosts may spell differently, of which only whether they
// are given counts.
std::vector<RankFact> AgreedFlags();

}  // namespace fsdp

#endif  // FSDP_TRAIN_AGREED_FLAGS_H_
