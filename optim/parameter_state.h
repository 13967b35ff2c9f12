// SPDX-License-Identifier: Apache-2.0
//
// Which states an optimizer keeps of a parameter.
#ifndef FSDP_OPTIM_PARAMETER_STATE_H_
#define FSDP_OPTIM_PARAMETER_STATE_H_

#include <functional>
#include <string_view>

#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

// Whether a parameter has a state; empty: it has every state of its optimizer. The same on every rank.
using StateRule = std::function<bool(const ShardedParameter& parameter, std::string_view state)>;

}  // namespace fsdp

#endif  // FSDP_OPTIM_PARAMETER_STATE_H_
