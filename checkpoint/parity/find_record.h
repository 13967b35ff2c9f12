// SPDX-License-Identifier: Apache-2.0
//
// FindRecord: what a rank file says of itself, found without a manifest and without HDF5: records begin at multiples of
// 4096 bytes and are sealed. CheckSaveOf: whether that is what a manifest says.
#ifndef FSDP_CHECKPOINT_PARITY_FIND_RECORD_H_
#define FSDP_CHECKPOINT_PARITY_FIND_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The record of the rank file `file`, whose own extent it includes. Only the record itself has been checked; its
// digests are for the rest of the file. kDataLoss when no undamaged record is found.
absl::StatusOr<FileRecord> FindRecord(const File& file);

// kDataLoss, beginning with "manifest.json", when most of the rank files that `manifest` names are in `directory`, but
// as those of one other save, and none is of its own: then not they are in the wrong place, but the manifest is.
absl::Status CheckSaveOf(FileSystem& files, const std::string& directory, const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_PARITY_FIND_RECORD_H_
