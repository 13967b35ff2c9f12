// SPDX-License-Identifier: Apache-2.0
//
// ApplyToModules: a function on every module with its parameters whole: initialising a model in place. PyTorch's apply.
#ifndef FSDP_FSDP_MODULE_APPLY_H_
#define FSDP_FSDP_MODULE_APPLY_H_

#include <functional>

#include "absl/status/status.h"
#include "fsdp/fsdp/summon_full_params.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Calls `fn` for every module at and below `root`, children first, while the parameters of the units that it lies in
// are bound whole; what it writes to them stays. At most the units on one path from the root are whole at one time. The
// first error of any rank is returned on all; after it `fn` is not called again. kFailedPrecondition while a
// SummonFullParamsGuard lives. `changed`: as the guard's. Collective; blocks.
absl::Status ApplyToModules(Module& root, const UnitStore& units, const std::function<absl::Status(Module&)>& fn,
                            const ShardsChanged& changed);

}  // namespace fsdp

#endif  // FSDP_FSDP_MODULE_APPLY_H_
