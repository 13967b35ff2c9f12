// SPDX-License-Identifier: Apache-2.0
//
// The elements of lists among the entries of .metadata: "Q.0", "Q.1". DCP gives each an entry of its own, in the order
// of the ranks and of what these save: with several ranks, or with values among the tensors, it is not the order of the
// list. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_LISTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_LISTS_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"

namespace fsdp {

// Brings the elements of each list into order; entries that are in no list keep their places. kInvalidArgument names
// the entry after a missing element.
absl::Status OrderLists(std::vector<DcpEntry>& entries);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_LISTS_H_
