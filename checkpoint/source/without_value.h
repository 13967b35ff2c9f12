// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_CHECKPOINT_SOURCE_WITHOUT_VALUE_H_
#define FSDP_CHECKPOINT_SOURCE_WITHOUT_VALUE_H_

#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// `state` without its entry `key`, since a StateDict only grows.
StateDict WithoutValue(const StateKey& key, const StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_WITHOUT_VALUE_H_
