// SPDX-License-Identifier: Apache-2.0
//
// The driver for the checkpoints of DeepSpeed: a TAG directory (global_step1000), or the ROOT above it. Written is a
// universal checkpoint, which DeepSpeed loads with any stage of ZeRO and any number of ranks.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_DRIVER_H_

#include <memory>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// A ROOT with one universal checkpoint (universal_writer.h). No options.
struct DeepSpeedTarget {};

const FormatDriver& DeepSpeedDriver();
std::unique_ptr<FormatWriter> WriterFor(const DeepSpeedTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_DRIVER_H_
