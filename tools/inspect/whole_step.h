// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_TOOLS_INSPECT_WHOLE_STEP_H_
#define FSDP_TOOLS_INSPECT_WHOLE_STEP_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/native/format/manifest.h"

namespace fsdp {

// The manifest of the step `name` of a ROOT. kDataLoss unless the metadata are whole and of this step, and all files
// are there and have their sizes. Reads no values.
absl::StatusOr<Manifest> ReadWholeStep(const std::string& root, const std::string& name);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_WHOLE_STEP_H_
