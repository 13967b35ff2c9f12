// SPDX-License-Identifier: Apache-2.0
//
// DcpValue: a pickled value of a DCP directory with tensors inside. DCP divides dicts and lists into their tensors, but
// pickles a tuple, and any object, with its tensors in one archive. They become tensors of one chunk, like all others.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_VALUE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_VALUE_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// By chunk: the number of its tensor in an archive that has several. A chunk that is missing here has an archive of its
// own.
using InnerTensors = absl::flat_hash_map<uint32_t, uint32_t>;

// The value of the archive `slice`, whose tensors are added to `metadata` and are numbered as there.
TorchNode TakeValue(TorchTree tree, const DcpSlice& slice, DcpMetadata& metadata, InnerTensors& inner);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_VALUE_H_
