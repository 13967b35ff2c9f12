// SPDX-License-Identifier: Apache-2.0
//
// Lets HDF5 use an open file. The library's own drivers open by path, and the path of a descriptor, /proc/self/fd/N,
// does not exist if /proc is not mounted: in an empty chroot, in the build steps of many containers. Only for
// hdf5_file.cc and hdf5_listing.cc, like hdf5_library.h.
#ifndef FSDP_CHECKPOINT_HDF5_HDF5_DESCRIPTOR_H_
#define FSDP_CHECKPOINT_HDF5_HDF5_DESCRIPTOR_H_

#include <hdf5.h>

#include <optional>

#include "fsdp/tensor/interval.h"

namespace fsdp {

// Makes H5Fcreate and H5Fopen with the file access list `access` use `fd` and ignore their name argument. `fd` must be
// open until the file is closed, and is not closed by it. False when the library refuses, with its error stack set.
// Precondition: a Hdf5LibraryCall is held. With `part`, those bytes are the file, which then can only be read: an HDF5
// file in an archive.
bool SetDescriptor(hid_t access, int fd, const std::optional<Interval>& part = std::nullopt);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_HDF5_HDF5_DESCRIPTOR_H_
