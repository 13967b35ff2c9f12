// SPDX-License-Identifier: Apache-2.0
//
// FindRecord: finds the record of a rank file without a manifest and without HDF5: records begin at multiples of
// kRecordAlignment and are sealed. CheckSaveOf: checks that a manifest and the rank files next to it belong to one
// save.
#ifndef FSDP_CHECKPOINT_NATIVE_PARITY_FIND_RECORD_H_
#define FSDP_CHECKPOINT_NATIVE_PARITY_FIND_RECORD_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The record of the rank file `file`; files[0] of the result also has the extent of the record itself. Only the record
// has been verified: its digests can verify the rest of the file. kDataLoss when no undamaged record is found. Reads
// the first bytes of every page of the file up to the record, which is near the beginning of an undamaged file. Takes
// time in proportion to the file, and memory to the record.
absl::StatusOr<FileRecord> FindRecord(const File& file);

// kDataLoss, beginning with "manifest.json", when more than half of the rank files that `manifest` names are in
// `directory` as files of one other save, and not one of them is of its own save: then the manifest is misplaced, not
// the rank files. Otherwise OK.
absl::Status CheckSaveOf(FileSystem& files, const std::string& directory, const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_PARITY_FIND_RECORD_H_
