// SPDX-License-Identifier: Apache-2.0
//
// The wheel's Writer keeps an index in its checkpoints, the text extra/torch.distributed.checkpoint
// (python/fsdp_checkpoint/_torch_layout.py): which of DCP's names is which value, for its Reader. To PyTorch's own
// formats it means nothing.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_WHEEL_INDEX_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_WHEEL_INDEX_H_

#include <string>
#include <vector>

#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Takes the index out of `state`, if it has one, and gives the extra values that DCP has flattened ("scheduler.gamma")
// the dicts and lists of the program again. Returns a note for each value that the index calls the bytes of a
// pickle (an object that no other form here can hold): a program gets these bytes, and must unpickle them itself.
std::vector<std::string> TakeWheelIndex(StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_WHEEL_INDEX_H_
