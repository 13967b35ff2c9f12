// SPDX-License-Identifier: Apache-2.0
//
// Which dtype an HDF5 type is, by its properties and not by its name, since h5py and other writers spell the same type
// in several ways. Only for hdf5_listing.cc: a Hdf5LibraryCall is held.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_TYPE_NAME_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_TYPE_NAME_H_

#include <hdf5.h>

#include <string>

namespace fsdp {

// The DTypeName of `type`, "text", or "" for a type that is not in checkpoints. `named` is the attribute "dtype", which
// distinguishes the bytes of a float8 from uint8.
std::string Hdf5TypeName(hid_t type, const std::string& named);

// The enumeration {FALSE = 0, TRUE = 1} of bytes.
bool IsHdf5Bool(hid_t type);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_HDF5_TYPE_NAME_H_
