// SPDX-License-Identifier: Apache-2.0
//
// Numbers are written by ToString, which writes a double with a point, so that it is not read back as an integer;
// strings through nlohmann, for their escapes, since ToString cuts them for messages.
#include "fsdp/checkpoint/native/format/stored_attributes.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {
namespace {

using nlohmann::json;

std::string Named(const std::string& name) { return absl::StrCat("attribute ", Quote(name)); }

absl::Status Refused(const std::string& name, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(Named(name), ": ", why));
}

absl::Status CheckText(const std::string& name, const std::string& text) {
  FSDP_RETURN_IF_ERROR(CheckUtf8(text, Named(name)));
  return text.find('\0') == std::string::npos ? absl::OkStatus() : Refused(name, "it holds NUL");
}

absl::Status CheckAttribute(const std::string& name, const AttributeValue& value) {
  if (name.empty()) return Refused(name, "the name is empty");
  if (name.size() > kMaxAttributeNameBytes) {
    return Refused(name, absl::StrCat("the name has ", name.size(), " bytes, more than ", kMaxAttributeNameBytes));
  }
  FSDP_RETURN_IF_ERROR(CheckText(name, name));
  if (const auto* text = std::get_if<std::string>(&value)) return CheckText(name, *text);
  const auto* number = std::get_if<double>(&value);
  if (number == nullptr || std::isfinite(*number)) return absl::OkStatus();
  return Refused(name, absl::StrCat(ToString(value), " cannot be stored, only finite numbers can"));
}

absl::StatusOr<AttributeValue> DecodeValue(const json& value) {
  if (value.is_null()) return AttributeValue();
  if (value.is_boolean()) return AttributeValue(value.get<bool>());
  if (value.is_number_float()) return AttributeValue(value.get<double>());
  if (value.is_string()) return AttributeValue(value.get<std::string>());
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()}
                                               : value.is_number_integer();
  if (fits) return AttributeValue(value.get<int64_t>());
  return absl::DataLossError("it is not a scalar, or an integer beyond 64 bits");
}

}  // namespace

absl::Status CheckAttributes(const RunMetadata& attributes) {
  if (attributes.size() > kMaxAttributes) {
    return absl::InvalidArgumentError(
        absl::StrCat(attributes.size(), " attributes, expected at most ", kMaxAttributes));
  }
  size_t nbytes = 0;
  for (const auto& [name, value] : attributes) {
    FSDP_RETURN_IF_ERROR(CheckAttribute(name, value));
    // No overflow: at most kMaxAttributes names of kMaxAttributeNameBytes, and the loop ends at the first excess
    // string.
    nbytes += name.size();
    if (const auto* text = std::get_if<std::string>(&value)) nbytes += text->size();
    if (nbytes > kMaxAttributesBytes) {
      return Refused(name, absl::StrCat("with it the attributes have more than ", kMaxAttributesBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

std::string EncodeAttributes(const RunMetadata& attributes, const std::string& indent) {
  std::string out = "{";
  const char* separator = "\n";
  for (const auto& [name, value] : attributes) {
    const auto* text = std::get_if<std::string>(&value);
    absl::StrAppend(&out, separator, indent, "  ", json(name).dump(), ": ",
                    text == nullptr ? ToString(value) : json(*text).dump());
    separator = ",\n";
  }
  return absl::StrCat(out, "\n", indent, "}");
}

absl::StatusOr<RunMetadata> DecodeAttributes(const json& object) {
  if (!object.is_object()) return absl::DataLossError("member \"attributes\" is not an object");
  RunMetadata attributes;
  for (const auto& [name, member] : object.items()) {
    absl::StatusOr<AttributeValue> value = DecodeValue(member);
    if (!value.ok()) return absl::DataLossError(absl::StrCat(Named(name), ": ", value.status().message()));
    attributes.emplace(name, *std::move(value));
  }
  const absl::Status valid = CheckAttributes(attributes);
  if (!valid.ok()) return absl::DataLossError(valid.message());
  return attributes;
}

// A document of few scalars: very many or nested values could make it large.
absl::StatusOr<RunMetadata> DecodeAttributes(const JsonView& object) {
  if (!object.is_object()) return DecodeAttributes(json());
  constexpr size_t kMost = 8 * kMaxAttributesBytes;  // with names, escapes and blanks
  if (object.text().size() > kMost) {
    return absl::DataLossError(
        absl::StrCat("attributes of ", object.text().size(), " bytes, expected at most ", kMost));
  }
  if (const int64_t count = object.size(); count > static_cast<int64_t>(kMaxAttributes)) {
    return absl::DataLossError(absl::StrCat(count, " attributes, expected at most ", kMaxAttributes));
  }
  json attributes = json::object();
  for (const auto& [name, value] : object.members()) {
    const bool is_scalar = !value.is_object() && !value.is_array();
    attributes[name] = is_scalar ? json::parse(value.text(), nullptr, /*allow_exceptions=*/false) : json::array();
  }
  return DecodeAttributes(attributes);
}

}  // namespace fsdp
