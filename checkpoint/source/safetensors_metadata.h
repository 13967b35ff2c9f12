// SPDX-License-Identifier: Apache-2.0
//
// A safetensors file's `__metadata__` on its way through a checkpoint of ours: kept as the extra text "__metadata__", a
// JSON object of strings, so that a file that is converted and converted back has its metadata again.
#ifndef FSDP_CHECKPOINT_SOURCE_SAFETENSORS_METADATA_H_
#define FSDP_CHECKPOINT_SOURCE_SAFETENSORS_METADATA_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Where the text is kept.
StateKey SafetensorsMetadataKey();

// Puts `metadata` into `contents`, unless it is empty or what new files have anyway, {"format": "pt"}.
void KeepSafetensorsMetadata(const std::map<std::string, std::string>& metadata, StateDict& contents);

// The metadata to write: that of the source, else what `contents` keep, else {"format": "pt"}. kDataLoss when the kept
// text is not what KeepSafetensorsMetadata makes.
absl::StatusOr<std::map<std::string, std::string>> SafetensorsMetadata(
    const std::map<std::string, std::string>& of_source, const StateDict& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_SAFETENSORS_METADATA_H_
