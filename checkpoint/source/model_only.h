// SPDX-License-Identifier: Apache-2.0
//
// FitModelOnly: what FormatWriter::Fit does for a format that holds the tensors of a model and nothing else.
#ifndef FSDP_CHECKPOINT_SOURCE_MODEL_ONLY_H_
#define FSDP_CHECKPOINT_SOURCE_MODEL_ONLY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_driver.h"
#include "fsdp/checkpoint/source/format_traits.h"

namespace fsdp {

// Leaves optimizer state, extra values, metadata and aliases out of `contents`, and returns a sentence for each kind
// that there was. Metadata stay if the format keeps them. kInvalidArgument when there is something, but no tensor of a
// model.
absl::StatusOr<std::vector<std::string>> FitModelOnly(const FormatTraits& traits, FormatContents& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_MODEL_ONLY_H_
