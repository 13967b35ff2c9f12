// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/source/block_types.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "nlohmann/json.hpp"

namespace fsdp {

std::string EncodeBlockTypes(const BlockTypes& types) { return nlohmann::json(types).dump(); }

absl::StatusOr<BlockTypes> BlockTypesOf(const std::map<std::string, std::string>& metadata) {
  BlockTypes types;
  const auto at = metadata.find(kBlockTypesKey);
  if (at == metadata.end()) return types;
  const absl::StatusOr<JsonView> json = JsonView::Parse(at->second);
  if (!json.ok()) return Annotate(json.status(), absl::StrCat("metadata \"", kBlockTypesKey, "\""));
  for (const auto& [name, type] : json->members()) {
    const std::optional<std::string> text = type.string();
    if (!text) {
      return absl::DataLossError(absl::StrCat("metadata \"", kBlockTypesKey, "\" is no object of names of types"));
    }
    types[name] = *text;
  }
  return types;
}

}  // namespace fsdp
