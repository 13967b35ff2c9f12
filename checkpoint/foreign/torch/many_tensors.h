// SPDX-License-Identifier: Apache-2.0
//
// ManyTensorsPickle and ManyTensorsArchive, for tests: the output of torch.save for a model of any number of small
// tensors, with or without AdamW's state: protocol 2, everything memoized, recurring texts and globals by GET, a
// thousand members per SETITEMS.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_MANY_TENSORS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_MANY_TENSORS_H_

#include <string>

namespace fsdp {

// {name: tensor, ...}, or {"model": {name: tensor, ...}, "optimizer": {"state": {0: {"step": tensor, ...}, ...},
// "param_groups": [{"params": [0, ...]}]}}. Tensors are float32 of shape [2, 2], each with its own storage.
std::string ManyTensorsPickle(int parameters, bool has_optimizer);

// The archive with that pickle, with zeros for elements.
std::string ManyTensorsArchive(int parameters, bool has_optimizer);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_MANY_TENSORS_H_
