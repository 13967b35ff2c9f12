// SPDX-License-Identifier: Apache-2.0
//
// EncodeDcpMetadata: the .metadata of a DCP directory, as torch.distributed.checkpoint pickles it. Pure.
#ifndef FSDP_CHECKPOINT_TORCH_DCP_DCP_ENCODING_H_
#define FSDP_CHECKPOINT_TORCH_DCP_DCP_ENCODING_H_

#include <string>

#include "fsdp/checkpoint/torch/dcp/dcp_metadata.h"

namespace fsdp {

// What ParseDcpMetadata reads back. `entries` and `tensors` are complete, paths included.
std::string EncodeDcpMetadata(const DcpMetadata& metadata);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_DCP_DCP_ENCODING_H_
