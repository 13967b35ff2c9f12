// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/convert/rename_param_groups.h"

#include <utility>

#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_events.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of members, so an unfiltered group is unchanged

}  // namespace

absl::StatusOr<std::string> RenameParamGroups(
    const std::string& json,
    const std::function<absl::StatusOr<std::optional<std::string>>(const std::string&)>& new_name) {
  AnyJson any;  // VisitJson bounds the depth of the text, which the recursive parser below does not
  const absl::Status valid = VisitJson(json, any);
  if (!valid.ok()) return Annotate(valid, "optim/param_groups");
  Json groups = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!groups.is_array()) return absl::DataLossError("optim/param_groups is not a JSON array");
  for (Json& group : groups) {
    // Groups without a list of names, such as an unknown optimizer's, are kept as they are.
    if (!group.is_object() || !group.contains("params") || !group["params"].is_array()) continue;
    Json params = Json::array();
    for (Json& param : group["params"]) {
      if (param.is_string()) {
        FSDP_ASSIGN_OR_RETURN(std::optional<std::string> renamed, new_name(param.get<std::string>()));
        if (!renamed) continue;
        param = *std::move(renamed);
      }
      params.push_back(std::move(param));
    }
    group["params"] = std::move(params);
  }
  // `replace`: an option text that is not UTF-8 must not throw here.
  return groups.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fsdp
