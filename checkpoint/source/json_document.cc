// SPDX-License-Identifier: Apache-2.0
//
// A document is built from the events of VisitJson, which refuses what nlohmann's own parser would accept without an
// error (duplicate names, any depth). Accessors check the type of every member before they use it, since nlohmann's
// throw.
#include "fsdp/checkpoint/source/json_document.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/source/json_events.h"

namespace fsdp {
namespace {

using nlohmann::json;

class DocumentBuilder final : public JsonVisitor {
 public:
  json Take() { return std::move(document_); }

  absl::Status StartObject(const JsonPlace& place) override { return Open(place, json::object()); }
  absl::Status EndObject(const JsonPlace&) override { return Close(); }
  absl::Status StartArray(const JsonPlace& place) override { return Open(place, json::array()); }
  absl::Status EndArray(const JsonPlace&) override { return Close(); }
  absl::Status String(const JsonPlace& place, std::string_view value) override {
    Add(place, value);
    return absl::OkStatus();
  }
  absl::Status Unsigned(const JsonPlace& place, uint64_t value) override {
    Add(place, value);
    return absl::OkStatus();
  }
  absl::Status Other(const JsonPlace& place, std::string_view, const json& value) override {
    Add(place, value);
    return absl::OkStatus();
  }
  // The document would hold it as a double, which is another number.
  absl::Status LargeInteger(const JsonPlace& place, std::string_view literal) override {
    const std::string name = place.names.empty() ? "" : absl::StrCat("member ", Quote(place.names.back()), ": ");
    return absl::DataLossError(absl::StrCat(name, Printable(literal), " is an integer beyond 64 bits"));
  }

 private:
  // Adds `value` to its parent, and returns a reference that is valid until the parent gets another value.
  json& Add(const JsonPlace& place, json value) {
    if (open_.empty()) return document_ = std::move(value);
    json& parent = *open_.back();
    if (parent.is_object()) return parent[place.names.back()] = std::move(value);
    return parent.emplace_back(std::move(value));
  }

  absl::Status Open(const JsonPlace& place, json empty) {
    open_.push_back(&Add(place, std::move(empty)));
    return absl::OkStatus();
  }

  absl::Status Close() {
    open_.pop_back();
    return absl::OkStatus();
  }

  json document_;
  std::vector<json*> open_;  // outermost first
};

absl::Status Wrong(const char* name, const char* expected) {
  return absl::DataLossError(absl::StrCat("member \"", name, "\" is missing or not ", expected));
}

const json* Find(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

// Unsigned only: no number of the formats read here is negative, so one bound suffices.
bool IsInteger(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text) {
  DocumentBuilder builder;
  FSDP_RETURN_IF_ERROR(VisitJson(text, builder));
  json document = builder.Take();
  // Accessors take members by name, so only an object is useful.
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
  // Checked before get, which would convert doubles silently and throw for strings.
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
