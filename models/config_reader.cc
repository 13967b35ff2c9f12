// SPDX-License-Identifier: Apache-2.0
//
// Absent and null differ: an absent field keeps the caller's default, null is a value, which only some fields may have.
// Numbers are checked for their JSON type before they are converted, since nlohmann would truncate 1.5 to 1 and wrap
// 2^63 to a negative.
#include "fsdp/models/config_reader.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/activation.h"

namespace fsdp {

absl::StatusOr<ConfigReader> ConfigReader::Parse(std::string_view model_type, std::string_view text) {
  Json parsed = Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(model_type), " config: not a JSON object"));
  }
  ConfigReader reader(model_type, std::move(parsed));
  const Json* own = reader.Find("model_type");
  // May be absent in hand-written files; then the caller's kind is trusted.
  if (own != nullptr && *own != reader.model_type_) {
    return reader.Wrong("model_type", *own, Json(reader.model_type_).dump());
  }
  const Json* causal = reader.Find("is_causal");
  if (causal != nullptr && *causal != true) return reader.Wrong("is_causal", *causal, "true");
  return reader;
}

const ConfigReader::Json* ConfigReader::Find(std::string_view field) const {
  const auto found = object_.find(std::string(field));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status ConfigReader::Wrong(std::string_view field, const Json& value, std::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(model_type_, " config: ", std::string(field), " is ", value.dump(),
                                                 ", wanted ", std::string(wanted)));
}

absl::Status ConfigReader::Int(const std::string& field, int64_t* value, const std::string& alias) const {
  auto found = object_.find(field);
  // Both names may be present, as in files of several versions of transformers; they must agree.
  if (const auto aliased = object_.find(alias); !alias.empty() && aliased != object_.end()) {
    if (found != object_.end() && *found != *aliased) {
      return absl::InvalidArgumentError(absl::StrCat(model_type_, " config: ", field, " is ", found->dump(),
                                                     " but its alias ", alias, " is ", aliased->dump()));
    }
    found = aliased;
  }
  if (found == object_.end()) return absl::OkStatus();
  if (!found->is_number_integer()) return Wrong(field, *found, "an integer");
  // A number past int64 would wrap to a negative one.
  if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Wrong(field, *found, "a smaller integer");
  }
  *value = found->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ConfigReader::IntOrNull(const std::string& field, int64_t* value) const {
  return Find(field) == nullptr ? absl::OkStatus() : Int(field, value);
}

absl::Status ConfigReader::Double(const std::string& field, double* value) const {
  const auto found = object_.find(field);
  if (found == object_.end()) return absl::OkStatus();
  if (!found->is_number()) return Wrong(field, *found, "a number");
  *value = found->get<double>();
  return absl::OkStatus();
}

absl::Status ConfigReader::Bool(const std::string& field, bool* value) const {
  const auto found = object_.find(field);
  if (found == object_.end()) return absl::OkStatus();
  if (!found->is_boolean()) return Wrong(field, *found, "true or false");
  *value = found->get<bool>();
  return absl::OkStatus();
}

absl::Status ConfigReader::String(const std::string& field, std::string* value) const {
  const auto found = object_.find(field);
  if (found == object_.end()) return absl::OkStatus();
  if (!found->is_string()) return Wrong(field, *found, "a name");
  *value = found->get<std::string>();
  return absl::OkStatus();
}

// Some fields, such as pruned_heads and quantization_config, change the model by being set at all. Files that
// Hugging Face writes often contain them with an empty value, which means "not set".
absl::Status ConfigReader::Refuse(std::initializer_list<const char*> fields) const {
  for (const char* field : fields) {
    const Json* found = Find(field);
    // false and {} are what Hugging Face writes for a feature that is off.
    if (found == nullptr || *found == false || (found->is_object() && found->empty())) continue;
    return absl::UnimplementedError(
        absl::StrCat(model_type_, " config: ", field, " is ", found->dump(), ", which is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ConfigReader::AddDropoutNote(std::initializer_list<const char*> fields, double default_value,
                                          std::vector<std::string>* notes) const {
  for (const char* field : fields) {
    double value = default_value;
    if (Find(field) != nullptr) FSDP_RETURN_IF_ERROR(Double(field, &value));
    if (value == 0 || notes == nullptr) continue;
    notes->push_back(absl::StrCat(field, " is ", value, Find(field) != nullptr ? "" : " by default",
                                  " and is taken as 0: there is no dropout."));
  }
  return absl::OkStatus();
}

absl::Status CheckConfigRange(std::string_view model_type, std::string_view field, int64_t value, int64_t min,
                              int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(model_type), " config: ", std::string(field), " is ",
                                                 value, ", wanted ", min, " to ", max));
}

absl::Status CheckConfigNumber(std::string_view model_type, std::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(model_type), " config: ", std::string(field), " is ",
                                                 value, ", wanted a number, at least 0"));
}

absl::Status CheckConfigActivation(std::string_view model_type, std::string_view field, std::string_view name) {
  const absl::Status status = ParseActivationKind(name).status();
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat(std::string(model_type), " config: ", std::string(field)));
}

}  // namespace fsdp
