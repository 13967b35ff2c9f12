// SPDX-License-Identifier: Apache-2.0
//
// FitModelOnly: implements FormatWriter::Fit for formats that hold only the tensors of a model.
#ifndef FSDP_CHECKPOINT_SOURCE_MODEL_ONLY_H_
#define FSDP_CHECKPOINT_SOURCE_MODEL_ONLY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/format_traits.h"

namespace fsdp {

// Leaves optimizer state, extra values, metadata and aliases out of `contents`, and returns a sentence for each kind
// that was present. Metadata stays if the format can store it. kInvalidArgument when there are values but no model
// tensor.
absl::StatusOr<std::vector<std::string>> FitModelOnly(const FormatTraits& traits, FormatContents& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_MODEL_ONLY_H_
