// SPDX-License-Identifier: Apache-2.0
//
// Stores a safetensors file's `__metadata__` in a checkpoint of ours as the extra text "__metadata__", a JSON object of
// strings, so that converting a file back and forth preserves its metadata.
#ifndef FSDP_CHECKPOINT_SOURCE_SAFETENSORS_METADATA_H_
#define FSDP_CHECKPOINT_SOURCE_SAFETENSORS_METADATA_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The key of the text.
StateKey SafetensorsMetadataKey();

// Puts `metadata` into `contents`, unless it is empty or the default of new files, {"format": "pt"}.
void KeepSafetensorsMetadata(const std::map<std::string, std::string>& metadata, StateDict& contents);

// Takes the text out of `contents`, for a format without a place for it. False if it is not there, or has another form.
bool TakeSafetensorsMetadata(StateDict& contents);

// The metadata to write: the metadata of the source, else the text in `contents`, else {"format": "pt"}. kDataLoss when
// that text does not have the form that KeepSafetensorsMetadata makes.
absl::StatusOr<std::map<std::string, std::string>> SafetensorsMetadata(
    const std::map<std::string, std::string>& of_source, const StateDict& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SAFETENSORS_METADATA_H_
