// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/inspect/options_diff.h"

#include "absl/strings/str_cat.h"
#include "fsdp/tools/inspect/attribute_json.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

OptionsDiff::Side SideOf(const CheckpointSummary& summary) {
  return {summary.path, !summary.manifest.save.attributes.empty()};
}

Json SideJson(const OptionsDiff::Side& side) { return {{"path", side.path}, {"recorded", side.is_recorded}}; }

// A side that lacks the attribute does not have a member for it, since null is a value.
Json DifferenceJson(const AttributeDifference& difference) {
  Json json = {{"name", difference.name}};
  if (difference.saved) json["a"] = AttributeJson(*difference.saved);
  if (difference.current) json["b"] = AttributeJson(*difference.current);
  return json;
}

}  // namespace

OptionsDiff CompareOptions(const CheckpointSummary& a, const CheckpointSummary& b) {
  OptionsDiff diff = {SideOf(a), SideOf(b), {}};
  // Against nothing every attribute would count as a difference.
  if (diff.is_known()) {
    diff.differences = CompareAttributes(a.manifest.save.attributes, b.manifest.save.attributes);
  }
  return diff;
}

std::string OptionsDiffText(const OptionsDiff& diff) {
  std::string text = absl::StrCat("A: ", diff.a.path, "\nB: ", diff.b.path, "\n");
  for (const OptionsDiff::Side* side : {&diff.a, &diff.b}) {
    if (!side->is_recorded) absl::StrAppend(&text, side->path, " does not record its options\n");
  }
  for (const AttributeDifference& difference : diff.differences) {
    absl::StrAppend(&text, ToString(difference), "\n");
  }
  if (!diff.is_known()) return absl::StrCat(text, "not known: there is nothing to compare\n");
  if (diff.equal()) return absl::StrCat(text, "equal: config, data and options\n");
  return absl::StrCat(text, "different: ", diff.differences.size(), " of the config, the data and the options\n");
}

std::string OptionsDiffJson(const OptionsDiff& diff) {
  Json json = {{"equal", diff.is_known() ? Json(diff.equal()) : Json()},
               {"a", SideJson(diff.a)},
               {"b", SideJson(diff.b)},
               {"differences", Json::array()}};
  for (const AttributeDifference& difference : diff.differences) {
    json["differences"].push_back(DifferenceJson(difference));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fsdp
