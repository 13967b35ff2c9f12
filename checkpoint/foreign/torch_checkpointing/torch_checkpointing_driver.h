// SPDX-License-Identifier: Apache-2.0
//
// TorchCheckpointingDriver: directories of torch_checkpointing, and of FSDP2's ranks with a torch.save each
// (torch_checkpointing_source.h). Read only.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_TORCH_CHECKPOINTING_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_TORCH_CHECKPOINTING_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& TorchCheckpointingDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_CHECKPOINTING_TORCH_CHECKPOINTING_DRIVER_H_
