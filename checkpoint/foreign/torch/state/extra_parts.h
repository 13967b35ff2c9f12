// SPDX-License-Identifier: Apache-2.0
//
// ExtraParts: extra values with tensors inside, such as {"torch": tensor, "cuda": [tensor], "epoch": 3} under "rng".
// Each tensor, and each value without one, is an entry of the state dict, named by the path to it; the text of the
// whole value refers to them, so that it can be written as it was (torch_encoding.h, dcp_writer.h):
//
//   extra/rng.torch   a tensor       extra/rng  {"torch":{"__python__":"reference","name":"rng.torch"},
//   extra/rng.cuda.0  a tensor                   "cuda":[{"__python__":"reference","name":"rng.cuda.0"}],
//   extra/rng.epoch   3                          "epoch":{"__python__":"reference","name":"rng.epoch"}}
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_EXTRA_PARTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_EXTRA_PARTS_H_

#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The text of a reference to extra value `name`, and the name in one; nullopt for any other value.
std::string ReferenceText(const std::string& name);
std::optional<std::string> NameOfReference(const PythonJson& json);

// True if `json` is or holds a reference.
bool HoldsReference(const PythonJson& json);

// The extra values of `contents` to which a text refers: they are written in the place of the reference and nowhere
// else. kInvalidArgument names a text that refers to what `contents` does not hold, or to a text with references of its
// own, which could refer to each other without end.
absl::StatusOr<std::set<StateKey>> PartsOfExtras(const StateDict& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_EXTRA_PARTS_H_
