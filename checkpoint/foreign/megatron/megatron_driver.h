// SPDX-License-Identifier: Apache-2.0
//
// The driver for checkpoints of Megatron-Core: a ROOT with latest_checkpointed_iteration.txt, or an iteration in it.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& MegatronDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_DRIVER_H_
