// SPDX-License-Identifier: Apache-2.0
//
// HDF5 on an open file. The library's own drivers open by path, and the path of a descriptor, /proc/self/fd/N, leads
// nowhere where /proc is not mounted: in an empty chroot, in many containers' build steps. For hdf5_file.cc and
// hdf5_listing.cc alone, as hdf5_library.h is.
#ifndef FSDP_CHECKPOINT_HDF5_HDF5_DESCRIPTOR_H_
#define FSDP_CHECKPOINT_HDF5_HDF5_DESCRIPTOR_H_

#include <hdf5.h>

namespace fsdp {

// Makes H5Fcreate and H5Fopen with the file access list `access` use `fd`, whatever name they are given. `fd` must be
// open until the file is closed, and is not closed by it. False when the library refuses, with its error stack set.
// Precondition: a Hdf5LibraryCall is held.
bool SetDescriptor(hid_t access, int fd);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_DESCRIPTOR_H_
