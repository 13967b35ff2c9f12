// SPDX-License-Identifier: Apache-2.0
//
// ConfigReader: reads the fields of a Hugging Face config.json, each by its name into a variable that already has its
// default. Errors are kInvalidArgument and name the model, the field, its value and the expected one.
#ifndef FSDP_MODELS_CONFIG_READER_H_
#define FSDP_MODELS_CONFIG_READER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace fsdp {

class ConfigReader {
 public:
  using Json = nlohmann::ordered_json;

  // For a causal model of kind `model_type`, which messages name. kInvalidArgument if the file has another model_type.
  static absl::StatusOr<ConfigReader> Parse(std::string_view model_type, std::string_view text);

  // Over an object within another config, which is not checked; `model_type` names it in messages. Precondition: it is
  // a JSON object.
  ConfigReader(std::string_view model_type, Json object) : model_type_(model_type), object_(std::move(object)) {}

  // The JSON value of a field; nullptr if it is absent or JSON's null.
  const Json* Find(std::string_view field) const;

  // Each reads a field into `*value`, which does not change if the field is absent. Null is an error, except for
  // functions whose name ends in OrNull, which treat it as absent. A field and its alias with different values are an
  // error. Int refuses numbers with a fraction or an exponent and those beyond int64; Double takes integers too. No
  // range is checked: see CheckConfigRange.
  absl::Status Int(const std::string& field, int64_t* value, const std::string& alias = "") const;
  absl::Status IntOrNull(const std::string& field, int64_t* value) const;
  absl::Status Double(const std::string& field, double* value) const;
  absl::Status Bool(const std::string& field, bool* value) const;
  absl::Status String(const std::string& field, std::string* value) const;

  // kUnimplemented if one of `fields` has a value other than null, false and {}.
  absl::Status Refuse(std::initializer_list<const char*> fields) const;

  // Adds a sentence to `notes`, which may be null, for each of `fields`, dropout rates, that is not 0 in the file or,
  // if absent, by `default_value`. These models have no dropout.
  absl::Status AddDropoutNote(std::initializer_list<const char*> fields, double default_value,
                              std::vector<std::string>* notes) const;

  // kInvalidArgument: "gpt2 config: n_layer is -1, wanted ...".
  absl::Status Wrong(std::string_view field, const Json& value, std::string_view wanted) const;

 private:
  std::string model_type_;
  Json object_;
};

// The three checks below are of values, so they serve configs of any origin: files, presets and callers. `field` and
// `model_type` are for the message.

// kInvalidArgument unless min <= value <= max.
absl::Status CheckConfigRange(std::string_view model_type, std::string_view field, int64_t value, int64_t min,
                              int64_t max);

// kInvalidArgument unless `value` is finite and at least 0.
absl::Status CheckConfigNumber(std::string_view model_type, std::string_view field, double value);

// kUnimplemented unless `name` is an activation function of nn/activation.h.
absl::Status CheckConfigActivation(std::string_view model_type, std::string_view field, std::string_view name);

}  // namespace fsdp

#endif  // FSDP_MODELS_CONFIG_READER_H_
