// SPDX-License-Identifier: Apache-2.0
//
// FlaxDriver: files of flax.serialization and directories of transformers with such a model (flax_source.h). Read only.
#ifndef FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& FlaxDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_FLAX_FLAX_DRIVER_H_
