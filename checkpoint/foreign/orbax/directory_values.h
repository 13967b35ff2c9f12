// SPDX-License-Identifier: Apache-2.0
//
// DirectoryValues: zarr arrays as folders of a directory, the form of Orbax with use_ocdbt=False: a key is the path of
// a file. Opening lists the folders; files are opened on request.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_DIRECTORY_VALUES_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_DIRECTORY_VALUES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/orbax/key_values.h"

namespace fsdp {

// Errors of listing `directory`; kResourceExhausted for more than a million arrays.
absl::StatusOr<std::unique_ptr<KeyValues>> OpenDirectoryValues(const std::string& directory);

// True if a folder directly inside `directory` is a zarr array. Errors of the disk.
absl::StatusOr<bool> HasZarrArray(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_DIRECTORY_VALUES_H_
