// SPDX-License-Identifier: Apache-2.0
//
// What a conversion does for the blocks of quantized types that a source carries (block_types.h), and for the keys of a
// GGUF file whose target is another one.
#ifndef FSDP_CHECKPOINT_CONVERT_CARRIED_BLOCKS_H_
#define FSDP_CHECKPOINT_CONVERT_CARRIED_BLOCKS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/convert/convert_plan.h"
#include "fsdp/checkpoint/formats/formats.h"

namespace fsdp {

// kInvalidArgument for a target that has no place for the types of blocks.
absl::Status CheckKeepsBlocks(const FormatTarget& target);

// Lets the types in `metadata` follow the tensors of the plan: what is renamed is renamed, what is left out is left
// out.
absl::Status CarryBlockTypes(const ConvertPlan& plan, std::map<std::string, std::string>& metadata);

// From GGUF to GGUF without a template, the keys of the source become the target's.
void CarryGgufKeys(const std::string& source, FormatTarget& target);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CARRIED_BLOCKS_H_
