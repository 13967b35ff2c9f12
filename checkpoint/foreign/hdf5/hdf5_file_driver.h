// SPDX-License-Identifier: Apache-2.0
//
// The driver for a single HDF5 file without a manifest (hdf5_file_source.h). Read-only: a save or a conversion writes a
// whole checkpoint directory.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_DRIVER_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_DRIVER_H_

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

const FormatDriver& Hdf5FileDriver();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_FILE_DRIVER_H_
