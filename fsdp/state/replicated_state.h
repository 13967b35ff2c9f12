// SPDX-License-Identifier: Apache-2.0
//
// What every rank of a model has whole, beside its units: persistent buffers, and parameters that FSDP ignores.
#ifndef FSDP_FSDP_STATE_REPLICATED_STATE_H_
#define FSDP_FSDP_STATE_REPLICATED_STATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/nn/module.h"

namespace fsdp {

struct ReplicatedTensor {
  std::string fqn;
  Tensor data;                    // the live one
  DType dtype = DType::kFloat32;  // the original one, which state dicts are in; `data` may be in another
};

// Those of `root`, each under its first name. kFailedPrecondition names one that has no memory.
absl::StatusOr<std::vector<ReplicatedTensor>> ReplicatedTensors(Module& root, const UnitStore& units);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_REPLICATED_STATE_H_
