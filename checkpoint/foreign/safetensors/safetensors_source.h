// SPDX-License-Identifier: Apache-2.0
//
// OpenSafetensorsSource: a safetensors file, or a Hugging Face directory of them, as a TensorSource. The format holds a
// model and nothing else: every key is a model key, and there is no step. It has no digest either, so only its
// structure is checked.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SOURCE_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/safetensors/safetensors_file.h"
#include "fsdp/checkpoint/source/format_traits.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// True when `directory` holds model.safetensors or model.safetensors.index.json.
bool IsHuggingFaceDirectory(const std::string& directory);

// Opens a file, or a directory with model.safetensors or, without that, model.safetensors.index.json. Reads and checks
// all headers. kNotFound when there is none; kDataLoss names the file, the tensor and the rule that is broken: for a
// directory also a tensor that the index places in a file which lacks it, that a file holds but the index does not, or
// that two files hold.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenSafetensorsSource(const std::string& path);

// The files that OpenSafetensorsSource would read, sorted by name, each checked, and against the index where there is
// one: to find out which file holds what.
absl::StatusOr<std::vector<std::unique_ptr<SafetensorsFile>>> OpenSafetensorsFiles(const std::string& path);

// Of every source that this opens, and of its driver.
const FormatTraits& SafetensorsTraits();

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_SOURCE_H_
