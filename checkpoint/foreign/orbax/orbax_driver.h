// SPDX-License-Identifier: Apache-2.0
//
// The driver for checkpoints of Orbax, and for OCDBT databases and folders of zarr arrays that tensorstore wrote.
// Read-only.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& OrbaxDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_DRIVER_H_
