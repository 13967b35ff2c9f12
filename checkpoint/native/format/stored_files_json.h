// SPDX-License-Identifier: Apache-2.0
//
// The files of a manifest or a record, from their JSON, which may be hostile. Every name is of a file inside the
// checkpoint, every range is inside its file, and no sum of them overflows. Errors are kDataLoss and name the file, not
// the text: manifest_decode.cc knows it. Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_FILES_JSON_H_
#define FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_FILES_JSON_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/source/decode_budget.h"
#include "fsdp/checkpoint/source/json_view.h"

namespace fsdp {

// From the name of a file to its index in StoredValues::files; JSON refers to files by name. The keys are views of the
// names in those files.
using FileIndex = absl::flat_hash_map<std::string_view, int>;

// Member "files" of `document`. `files` must not change while `index` is used.
absl::Status DecodeFiles(const JsonView& document, DecodeBudget& budget, std::vector<StoredFile>& files,
                         FileIndex& index);

// The index of the file called `name`.
absl::StatusOr<int> FindFile(std::string_view name, const FileIndex& index);

// Members "offset" and "bytes"; end() does not overflow.
absl::StatusOr<ByteRange> DecodeRange(const JsonView& object);

// Member "save_id", as NewSaveId makes it: object stores and staged directories have it in the names of things.
absl::StatusOr<std::string> DecodeSaveId(const JsonView& object);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_FORMAT_STORED_FILES_JSON_H_
