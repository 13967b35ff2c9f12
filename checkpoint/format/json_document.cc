// SPDX-License-Identifier: Apache-2.0
//
// Documents are read twice: VisitJson first, which refuses what nlohmann's parser would accept without an error
// (duplicate names, any depth), then the parser, which builds the document. Accessors check the type of every member
// before they use it, since nlohmann's own throw.
#include "fsdp/checkpoint/format/json_document.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/json_events.h"

namespace fsdp {
namespace {

using nlohmann::json;

// Accepts every event but integers that the document would hold as a double, and so as another number: the other checks
// that ParseJson wants are VisitJson's own.
class AnyJson final : public JsonVisitor {
 public:
  absl::Status StartObject(const JsonPlace&) override { return absl::OkStatus(); }
  absl::Status EndObject(const JsonPlace&) override { return absl::OkStatus(); }
  absl::Status StartArray(const JsonPlace&) override { return absl::OkStatus(); }
  absl::Status String(const JsonPlace&, std::string_view) override { return absl::OkStatus(); }
  absl::Status Unsigned(const JsonPlace&, uint64_t) override { return absl::OkStatus(); }
  absl::Status Other(const JsonPlace&, std::string_view) override { return absl::OkStatus(); }
  absl::Status LargeInteger(const JsonPlace& place, std::string_view literal) override {
    const std::string name = place.names.empty() ? "" : absl::StrCat("member ", Quote(place.names.back()), ": ");
    return absl::DataLossError(absl::StrCat(name, Printable(literal), " is an integer beyond 64 bits"));
  }
};

absl::Status Wrong(const char* name, const char* expected) {
  return absl::DataLossError(absl::StrCat("member \"", name, "\" is missing or not ", expected));
}

const json* Find(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

bool IsInteger(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text) {
  AnyJson any;
  FSDP_RETURN_IF_ERROR(VisitJson(text, any));
  json document = json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return absl::DataLossError("it is not a JSON object");
  return document;
}

absl::StatusOr<int64_t> IntegerMember(const json& object, const char* name) {
  const json* value = Find(object, name);
  if (value == nullptr || !IsInteger(*value)) return Wrong(name, "an integer from 0 to 2^63 - 1");
  return value->get<int64_t>();
}

absl::StatusOr<std::string> StringMember(const json& object, const char* name) {
  const json* value = Find(object, name);
  if (value == nullptr || !value->is_string()) return Wrong(name, "a string");
  return value->get<std::string>();
}

absl::StatusOr<const json*> ArrayMember(const json& object, const char* name) {
  const json* value = Find(object, name);
  if (value == nullptr || !value->is_array()) return Wrong(name, "an array");
  return value;
}

absl::StatusOr<std::vector<int64_t>> IntegerArrayMember(const json& object, const char* name) {
  FSDP_ASSIGN_OR_RETURN(const json* array, ArrayMember(object, name));
  if (!std::all_of(array->begin(), array->end(), IsInteger)) return Wrong(name, "an array of integers");
  return array->get<std::vector<int64_t>>();
}

absl::StatusOr<std::vector<std::string>> StringArrayMember(const json& object, const char* name) {
  FSDP_ASSIGN_OR_RETURN(const json* array, ArrayMember(object, name));
  if (!std::all_of(array->begin(), array->end(), [](const json& value) { return value.is_string(); })) {
    return Wrong(name, "an array of strings");
  }
  return array->get<std::vector<std::string>>();
}

std::string UnknownMembers(const json& object, const std::vector<std::string>& known) {
  std::string members;
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    absl::StrAppend(&members, ", ", json(name).dump(), ": ", value.dump());
  }
  return members;
}

std::string NameOf(const json& object) {
  const absl::StatusOr<std::string> name = StringMember(object, "name");
  return Quote(name.ok() ? *name : "");
}

}  // namespace fsdp
