// SPDX-License-Identifier: Apache-2.0
//
// EncodeDcpMetadata: the .metadata of a DCP directory, as torch.distributed.checkpoint pickles it. The inverse of
// ParseDcpMetadata; equal input gives equal bytes. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_ENCODING_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_ENCODING_H_

#include <string>

#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"

namespace fsdp {

// The bytes of .metadata. Every entry of `metadata` must have a path, and every chunk a slice: nothing is checked here.
std::string EncodeDcpMetadata(const DcpMetadata& metadata);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_ENCODING_H_
