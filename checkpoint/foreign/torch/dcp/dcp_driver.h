// SPDX-License-Identifier: Apache-2.0
//
// The driver for torch.distributed.checkpoint's directories.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_DRIVER_H_

#include <memory>
#include <optional>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// A directory with .metadata and a file of each rank.
struct DcpTarget {
  std::optional<int> world_size = {};  // ranks that share each tensor's rows, 1 to 99999; default: the source's
};

const FormatDriver& DcpDriver();
std::unique_ptr<FormatWriter> WriterFor(const DcpTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_DCP_DCP_DRIVER_H_
