// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/carried_blocks.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/block_types.h"

namespace fsdp {

absl::Status CheckKeepsBlocks(const FormatTarget& target) {
  const FormatTraits& traits = DriverOf(target).traits();
  if (traits.keeps_metadata) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ConvertOptions::keep_quantized: ", std::string(traits.name),
                   " has no place for the types of the blocks: convert to gguf, safetensors or hdf5"));
}

absl::Status CarryBlockTypes(const ConvertPlan& plan, std::map<std::string, std::string>& metadata) {
  if (metadata.count(kBlockTypesKey) == 0) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const BlockTypes of_source, BlockTypesOf(metadata));
  BlockTypes types;
  for (const auto& [key, value] : plan.contents.entries()) {
    if (key.section != StateKey::Section::kModel) continue;
    const auto at = of_source.find(plan.OriginOf(key).fqn);
    if (at != of_source.end()) types[key.fqn] = at->second;
  }
  if (types.empty()) {
    metadata.erase(kBlockTypesKey);
  } else {
    metadata[kBlockTypesKey] = EncodeBlockTypes(types);
  }
  return absl::OkStatus();
}

void CarryGgufKeys(const std::string& source, FormatTarget& target) {
  auto* const gguf = std::get_if<GgufTarget>(&target);
  if (gguf == nullptr || !gguf->template_path.empty()) return;
  const absl::StatusOr<const FormatDriver*> driver = FindFormat(source);
  // A file that cannot be read is an error of opening the source.
  if (driver.ok() && *driver == &DriverOf(*gguf)) gguf->keys_path = source;
}

}  // namespace fsdp
