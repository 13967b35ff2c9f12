// SPDX-License-Identifier: Apache-2.0
//
// The HDF5 types of our files. Part of the format (docs/checkpoint_format.md). Only for sources that use HDF5.
#ifndef FSDP_CHECKPOINT_HDF5_HDF5_TYPES_H_
#define FSDP_CHECKPOINT_HDF5_HDF5_TYPES_H_

#include <cstdint>

#include "fsdp/checkpoint/hdf5/hdf5_library.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The type of an element of `dtype` in a file; not ok() if the library cannot make it. While a Hdf5LibraryCall is held.
Hdf5Handle Hdf5TypeOf(DType dtype);

// The type of one UTF-8 text of max(1, nbytes) bytes, padded with NUL. As Hdf5TypeOf.
Hdf5Handle Hdf5TextType(int64_t nbytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_TYPES_H_
