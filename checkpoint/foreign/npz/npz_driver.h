// SPDX-License-Identifier: Apache-2.0
//
// The driver for .npz files, archives of NumPy's arrays.
#ifndef FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_DRIVER_H_

#include <memory>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// One file, with the model's tensors and nothing else.
struct NpzTarget {};

const FormatDriver& NpzDriver();
std::unique_ptr<FormatWriter> WriterFor(const NpzTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_NPZ_NPZ_DRIVER_H_
