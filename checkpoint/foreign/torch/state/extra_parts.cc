// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/extra_parts.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The value of an extra value that is a text and may have references; null for all others. Most texts are not parsed.
PythonJson ValueWithReferences(const StateKey& key, const StateValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  const bool may_have =
      key.section == StateKey::Section::kExtra && text != nullptr && text->find(kReferenceTag) != std::string::npos;
  return may_have ? PythonOfText(*text) : PythonJson();
}

absl::Status AddParts(const PythonJson& json, const StateKey& key, const StateDict& contents,
                      std::set<StateKey>& parts) {
  if (const std::optional<std::string> name = NameOfReference(json)) {
    const StateKey part = StateKey::Extra(*name);
    const std::optional<size_t> entry = contents.IndexOf(part);
    const bool is_part = entry && !HoldsReference(ValueWithReferences(part, contents.entries()[*entry].second));
    if (!is_part) {
      return absl::InvalidArgumentError(absl::StrCat("the text ", Quote(key.ToString()), " refers to ",
                                                     Quote(part.ToString()), ", which ",
                                                     entry ? "has references itself" : "is missing"));
    }
    parts.insert(part);
    return absl::OkStatus();
  }
  if (!json.is_structured()) return absl::OkStatus();
  for (const PythonJson& item : json) FSDP_RETURN_IF_ERROR(AddParts(item, key, contents, parts));
  return absl::OkStatus();
}

}  // namespace

// Equal to what PythonJson::dump makes of it.
std::string ReferenceText(const std::string& name) {
  PythonJson json;
  json[kPythonTag] = kReferenceTag;
  json["name"] = name;
  return json.dump(-1, ' ', false, PythonJson::error_handler_t::replace);
}

std::optional<std::string> NameOfReference(const PythonJson& json) {
  if (!json.is_object() || json.size() != 2) return std::nullopt;
  const auto tag = json.find(kPythonTag);
  const auto name = json.find("name");
  const bool is_reference = tag != json.end() && *tag == kReferenceTag && name != json.end() && name->is_string();
  return is_reference ? std::make_optional(name->get<std::string>()) : std::nullopt;
}

bool HoldsReference(const PythonJson& json) {
  return NameOfReference(json) || (json.is_structured() && std::any_of(json.begin(), json.end(), HoldsReference));
}

absl::StatusOr<std::set<StateKey>> PartsOfExtras(const StateDict& contents) {
  std::set<StateKey> parts;
  for (const auto& [key, value] : contents.entries()) {
    FSDP_RETURN_IF_ERROR(AddParts(ValueWithReferences(key, value), key, contents, parts));
  }
  return parts;
}

}  // namespace fsdp
