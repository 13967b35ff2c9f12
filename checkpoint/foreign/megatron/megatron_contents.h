// SPDX-License-Identifier: Apache-2.0
//
// FitMegatron: FormatWriter::Fit for Megatron-Core's checkpoints, which hold the model, an optimizer whose state has
// the shapes of the parameters, and plain values.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_CONTENTS_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_CONTENTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/format_driver.h"

namespace fsdp {

// Leaves out of `contents` what has no place, and returns a sentence for each kind. kInvalidArgument names a value that
// would be read as something else, or an optimizer that Megatron-Core could not load.
absl::StatusOr<std::vector<std::string>> FitMegatron(FormatContents& contents);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_MEGATRON_CONTENTS_H_
