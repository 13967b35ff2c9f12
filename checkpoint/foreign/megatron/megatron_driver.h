// SPDX-License-Identifier: Apache-2.0
//
// The driver for checkpoints of Megatron-Core: a ROOT with latest_checkpointed_iteration.txt, or an iteration in it.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_DRIVER_H_

#include <memory>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// A ROOT with one checkpoint in the torch_dist form, with the optimizer as the distributed optimizer's
// fully_reshardable form has it.
struct MegatronTarget {};

const FormatDriver& MegatronDriver();
std::unique_ptr<FormatWriter> WriterFor(const MegatronTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_DRIVER_H_
