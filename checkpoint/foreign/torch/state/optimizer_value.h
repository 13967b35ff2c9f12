// SPDX-License-Identifier: Apache-2.0
//
// OptimizerValue: a Python value in an optimizer's state, as state of ours. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_VALUE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_VALUE_H_

#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// `json`, the state `key` of an optimizer; a number as a scalar tensor. "step" becomes float32, the dtype in today's
// PyTorch, if float32 holds the number exactly.
TorchOptimizerState OptimizerValue(const StateKey& key, const PythonJson& json);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_OPTIMIZER_VALUE_H_
