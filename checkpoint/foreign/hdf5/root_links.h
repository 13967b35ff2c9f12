// SPDX-License-Identifier: Apache-2.0
//
// The names in the root group of an HDF5 file, as far as its first bytes show them: whose file it is, without parsing
// it. The library writes the names of a new file's root group near its start: into a heap or, in files since HDF5 1.8,
// into the header of the group.
#ifndef FSDP_CHECKPOINT_FOREIGN_HDF5_ROOT_LINKS_H_
#define FSDP_CHECKPOINT_FOREIGN_HDF5_ROOT_LINKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// Empty if they are not there: the group is large, or the file damaged. Pure.
std::vector<std::string> RootLinksOf(std::string_view head);

// True for an HDF5 file of Keras: with its groups at the root, or its ending, ".weights.h5", and none of ours.
bool IsKerasHdf5(const PathProbe& probe);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_HDF5_ROOT_LINKS_H_
