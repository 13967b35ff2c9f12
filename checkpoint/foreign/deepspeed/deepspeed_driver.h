// SPDX-License-Identifier: Apache-2.0
//
// The driver for the checkpoints of DeepSpeed: a TAG directory (global_step1000), or the ROOT above it.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& DeepSpeedDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_DRIVER_H_
