// SPDX-License-Identifier: Apache-2.0
//
// ValueNotes: what PyTorch's formats change in the extra values of a state dict, for the report of a conversion.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_VALUE_NOTES_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_VALUE_NOTES_H_

#include <string>
#include <vector>

#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Names each value that torch.load(weights_only=True) does not take: a frozenset, a value of numpy.
std::vector<std::string> NotesForTorchLoad(const StateDict& contents);

// The keys of the model and the optimizer that are not "model" and "optim" (BranchKeysOf).
std::vector<std::string> NotesOnBranchKeys(const StateDict& contents);

// Names each value that DCP stores as another type: a dict with tensors inside that is an OrderedDict or has keys other
// than strings, of which DCP keeps only names and members.
std::vector<std::string> NotesForDcp(const StateDict& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_VALUE_NOTES_H_
