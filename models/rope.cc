// SPDX-License-Identifier: Apache-2.0
//
// Frequencies are computed in float32 in PyTorch's order of operations, since a rotation by t * frequency at position t
// = 100,000 shows the last bit of a frequency. So 1 / power and not pow of the negative exponent, and Over for a
// division of a number by a tensor, which PyTorch does as reciprocal and product.
//
// A model that was trained on a short context sees larger angles at later positions than it ever learned. The forms of
// scaling differ in how they bring those angles back: default does nothing; linear (Chen et al., "Extending Context
// Window of Large Language Models via Positional Interpolation", 2023) divides all angles by `factor`, which also blurs
// near positions, since the fast frequencies that distinguish neighbours slow down too; llama3 spares those.
//
// llama3 (Llama 3.1): wavelengths beyond the original context are stretched by `factor`, those well inside it stay, and
// those in between are interpolated by how often they fit into the original context.
#include "fsdp/models/rope.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

using Json = ConfigReader::Json;

// As in Hugging Face, rope_scaling, if there is one, is read instead of rope_parameters.
absl::StatusOr<Json> FindParameters(const ConfigReader& model) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const Json* found = model.Find(field);
    if (found == nullptr) continue;
    if (!found->is_object()) return model.Wrong(field, *found, "an object or null");
    if (!found->empty()) return *found;
  }
  return Json::object();
}

absl::StatusOr<RopeConfig::Type> ParseType(const ConfigReader& rope) {
  std::string name = "default";
  FSDP_RETURN_IF_ERROR(rope.String("type", &name));  // an older name
  FSDP_RETURN_IF_ERROR(rope.String("rope_type", &name));
  if (name == "default") return RopeConfig::Type::kDefault;
  if (name == "linear") return RopeConfig::Type::kLinear;
  if (name == "llama3") return RopeConfig::Type::kLlama3;
  return absl::UnimplementedError(
      absl::StrCat("llama config: rope_type \"", name, "\" is not any of default, linear, llama3"));
}

const char* TypeName(const RopeConfig& rope) {
  switch (rope.type) {
    case RopeConfig::Type::kDefault:
      return "default";
    case RopeConfig::Type::kLinear:
      return "linear";
    case RopeConfig::Type::kLlama3:
      return "llama3";
  }
  return "unknown";
}

// The fields of rope_scaling in addition to its type, by Hugging Face's names.
template <typename Visit>
void VisitScaling(const RopeConfig& rope, Visit visit) {
  visit("factor", rope.factor);
  if (rope.type == RopeConfig::Type::kLinear) return;
  visit("low_freq_factor", rope.low_freq_factor);
  visit("high_freq_factor", rope.high_freq_factor);
  visit("original_max_position_embeddings", rope.original_max_position_embeddings);
}

// Reads a number that this type of scaling requires.
absl::Status Required(const ConfigReader& rope, const std::string& field, double* value) {
  if (rope.Find(field) != nullptr) return rope.Double(field, value);
  return absl::InvalidArgumentError(
      absl::StrCat("llama config: ", field, " is missing, which is required together with rope_type"));
}

absl::Status CheckPositive(std::string_view model_type, std::string_view field, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(model_type), " config: ", std::string(field), " is ",
                                                 value, ", wanted a positive number"));
}

// A number divided by a float32 tensor, in PyTorch's order of operations.
float Over(double number, float tensor) { return 1.0f / tensor * static_cast<float>(number); }

// With n the wavelengths that fit into the original context, the frequency is a mean of frequency / factor and
// frequency whose weight `smooth` goes from 0 at n = low_freq_factor to 1 at n = high_freq_factor.
float ScaleAsLlama3(const RopeConfig& rope, float frequency) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = Over(2 * M_PI, frequency);
  if (wavelength > static_cast<float>(context / rope.low_freq_factor)) return frequency / factor;
  if (wavelength < static_cast<float>(context / rope.high_freq_factor)) return frequency;
  const float smooth = (Over(context, wavelength) - static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

absl::StatusOr<RopeConfig> ParseRope(const ConfigReader& model, int64_t max_position_embeddings) {
  FSDP_ASSIGN_OR_RETURN(Json parameters, FindParameters(model));
  const ConfigReader reader("llama", std::move(parameters));
  RopeConfig rope;
  FSDP_ASSIGN_OR_RETURN(rope.type, ParseType(reader));
  FSDP_RETURN_IF_ERROR(model.Double("rope_theta", &rope.theta));
  FSDP_RETURN_IF_ERROR(reader.Double("rope_theta", &rope.theta));
  for (const ConfigReader* place : {&model, &reader}) {
    const Json* partial = place->Find("partial_rotary_factor");
    if (partial != nullptr && *partial != 1) return place->Wrong("partial_rotary_factor", *partial, "1");
  }
  if (rope.type == RopeConfig::Type::kDefault) return rope;
  FSDP_RETURN_IF_ERROR(Required(reader, "factor", &rope.factor));
  if (rope.type == RopeConfig::Type::kLinear) return rope;
  FSDP_RETURN_IF_ERROR(Required(reader, "low_freq_factor", &rope.low_freq_factor));
  FSDP_RETURN_IF_ERROR(Required(reader, "high_freq_factor", &rope.high_freq_factor));
  rope.original_max_position_embeddings = max_position_embeddings;
  FSDP_RETURN_IF_ERROR(reader.Int("original_max_position_embeddings", &rope.original_max_position_embeddings));
  FSDP_RETURN_IF_ERROR(model.IntOrNull("original_max_position_embeddings", &rope.original_max_position_embeddings));
  return rope;
}

absl::Status CheckRope(std::string_view model_type, const RopeConfig& rope) {
  FSDP_RETURN_IF_ERROR(CheckPositive(model_type, "rope_theta", rope.theta));
  if (rope.type == RopeConfig::Type::kDefault) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(CheckPositive(model_type, "factor", rope.factor));
  if (rope.type == RopeConfig::Type::kLinear) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(CheckPositive(model_type, "low_freq_factor", rope.low_freq_factor));
  FSDP_RETURN_IF_ERROR(CheckPositive(model_type, "high_freq_factor", rope.high_freq_factor));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(model_type), " config: high_freq_factor is ",
                                                   rope.high_freq_factor, ", wanted more than low_freq_factor, ",
                                                   rope.low_freq_factor));
  }
  return CheckConfigRange(model_type, "original_max_position_embeddings", rope.original_max_position_embeddings, 1,
                          INT32_MAX);
}

Json RopeScalingJson(const RopeConfig& rope) {
  if (rope.type == RopeConfig::Type::kDefault) return nullptr;
  Json json = {{"rope_type", TypeName(rope)}};
  VisitScaling(rope, [&](const char* name, auto value) { json[name] = value; });
  return json;
}

RunMetadata RopeAttributes(const RopeConfig& rope) {
  RunMetadata attributes = {{"rope_type", TypeName(rope)}, {"rope_theta", rope.theta}};
  if (rope.type == RopeConfig::Type::kDefault) return attributes;
  VisitScaling(rope, [&](const char* name, auto value) { attributes[absl::StrCat("rope_scaling.", name)] = value; });
  return attributes;
}

std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const auto power = static_cast<float>(std::pow(static_cast<float>(rope.theta), static_cast<double>(exponent)));
    const float frequency = 1.0f / power;
    switch (rope.type) {
      case RopeConfig::Type::kDefault:
        frequencies.push_back(frequency);
        break;
      case RopeConfig::Type::kLinear:
        frequencies.push_back(frequency / static_cast<float>(rope.factor));
        break;
      case RopeConfig::Type::kLlama3:
        frequencies.push_back(ScaleAsLlama3(rope, frequency));
        break;
    }
  }
  return frequencies;
}

}  // namespace fsdp
