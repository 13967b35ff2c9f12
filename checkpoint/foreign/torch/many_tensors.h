// SPDX-License-Identifier: Apache-2.0
//
// ManyTensorsPickle and WriteManyTensors, for tests: what torch.save writes of a model of any number of small tensors,
// with or without AdamW's state: protocol 2, everything memoized, texts and globals that recur by GET, a thousand
// members a SETITEMS.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_MANY_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_MANY_TENSORS_H_

#include <string>

namespace fsdp {

// {name: tensor, ...}, or {"model": {name: tensor, ...}, "optimizer": {"state": {0: {"step": tensor, ...}, ...},
// "param_groups": [{"params": [0, ...]}]}}. Tensors are float32 of shape [2, 2], each with a storage of its own.
std::string ManyTensorsPickle(int parameters, bool has_optimizer);

// The archive of that, with zeros for elements.
std::string ManyTensorsArchive(int parameters, bool has_optimizer);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_MANY_TENSORS_H_
