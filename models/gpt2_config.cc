// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2_config.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "nn/activation.h"
#include "tensor/shape.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxLayers = 65536;
constexpr int64_t kMaxVocabSize = int64_t{1} << 31;  // tokens are int32

// The byte-level tiny model learns the repository's own sources in about a minute on two cores.
constexpr struct {
  std::string_view name;
  int64_t vocab_size, n_positions, n_embd, n_layer, n_head;
} kPresets[] = {
    {"gpt2-tiny", 257, 128, 128, 4, 4},         // 256 byte values and an end of text
    {"gpt2-124m", 50257, 1024, 768, 12, 12},    // Hugging Face's "gpt2"
    {"gpt2-355m", 50257, 1024, 1024, 24, 16},   // "gpt2-medium"
    {"gpt2-774m", 50257, 1024, 1280, 36, 20},   // "gpt2-large"
    {"gpt2-1558m", 50257, 1024, 1600, 48, 25},  // "gpt2-xl"
};

absl::Status WrongType(std::string_view field, const Json& value, std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("gpt2 config: ", std::string(field), " is ", value.dump(), ", wanted ", std::string(wanted)));
}

// The value of `field`, or of Hugging Face's alias for it; null when neither is there. Two that differ are an error.
absl::StatusOr<const Json*> Find(const Json& config, const std::string& field, const std::string& alias) {
  const auto named = config.find(field);
  const auto aliased = alias.empty() ? config.end() : config.find(alias);
  if (named != config.end() && aliased != config.end() && *named != *aliased) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpt2 config: ", field, " is ", named->dump(), " but its alias ", alias, " is ", aliased->dump()));
  }
  if (named != config.end()) return &*named;
  return aliased != config.end() ? &*aliased : nullptr;
}

absl::Status ReadInt(const Json& config, const std::string& field, const std::string& alias, int64_t* value) {
  ASSIGN_OR_RETURN(const Json* found, Find(config, field, alias));
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_number_integer()) return WrongType(field, *found, "an integer");
  // A number past int64 would wrap to a negative one.
  if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return WrongType(field, *found, "a smaller integer");
  }
  *value = found->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ReadDouble(const Json& config, const std::string& field, double* value) {
  const auto found = config.find(field);
  if (found == config.end()) return absl::OkStatus();
  if (!found->is_number()) return WrongType(field, *found, "a number");
  *value = found->get<double>();
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& config, const std::string& field, bool* value) {
  const auto found = config.find(field);
  if (found == config.end()) return absl::OkStatus();
  if (!found->is_boolean()) return WrongType(field, *found, "true or false");
  *value = found->get<bool>();
  return absl::OkStatus();
}

// Fields whose other values would change the numbers in a way that is not implemented.
absl::Status RefuseUnknownNumerics(const Json& config) {
  const auto model_type = config.find("model_type");
  if (model_type != config.end() && *model_type != "gpt2") return WrongType("model_type", *model_type, "\"gpt2\"");
  for (const char* field : {"add_cross_attention", "pruned_heads", "quantization_config"}) {
    const auto found = config.find(field);
    const bool absent =
        found == config.end() || found->is_null() || *found == false || (found->is_object() && found->empty());
    if (!absent)
      return absl::UnimplementedError(
          absl::StrCat("gpt2 config: ", field, " is ", found->dump(), ", which is not implemented"));
  }
  return absl::OkStatus();
}

absl::Status NoteDropout(const Json& config, std::vector<std::string>* notes) {
  for (const char* field : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    double value = 0.1;  // GPT2Config's default
    RETURN_IF_ERROR(ReadDouble(config, field, &value));
    if (value == 0 || notes == nullptr) continue;
    notes->push_back(absl::StrCat(field, " is ", value, config.contains(field) ? "" : " by default",
                                  " and is taken as 0: there is no dropout."));
  }
  return absl::OkStatus();
}

absl::Status ReadFields(const Json& json, Gpt2Config& config) {
  RETURN_IF_ERROR(ReadInt(json, "vocab_size", "", &config.vocab_size));
  RETURN_IF_ERROR(ReadInt(json, "n_positions", "max_position_embeddings", &config.n_positions));
  RETURN_IF_ERROR(ReadInt(json, "n_embd", "hidden_size", &config.n_embd));
  RETURN_IF_ERROR(ReadInt(json, "n_layer", "num_hidden_layers", &config.n_layer));
  RETURN_IF_ERROR(ReadInt(json, "n_head", "num_attention_heads", &config.n_head));
  const auto inner = json.find("n_inner");
  if (inner != json.end() && !inner->is_null()) {
    RETURN_IF_ERROR(ReadInt(json, "n_inner", "", &config.n_inner));
    if (config.n_inner <= 0) return WrongType("n_inner", *inner, "a positive integer or null");
  }
  const auto activation = json.find("activation_function");
  if (activation != json.end()) {
    if (!activation->is_string()) return WrongType("activation_function", *activation, "a name");
    config.activation_function = activation->get<std::string>();
  }
  RETURN_IF_ERROR(ReadDouble(json, "layer_norm_epsilon", &config.layer_norm_epsilon));
  RETURN_IF_ERROR(ReadDouble(json, "initializer_range", &config.initializer_range));
  RETURN_IF_ERROR(ReadBool(json, "scale_attn_weights", &config.scale_attn_weights));
  RETURN_IF_ERROR(ReadBool(json, "scale_attn_by_inverse_layer_idx", &config.scale_attn_by_inverse_layer_idx));
  RETURN_IF_ERROR(ReadBool(json, "reorder_and_upcast_attn", &config.reorder_and_upcast_attn));
  return ReadBool(json, "tie_word_embeddings", &config.tie_word_embeddings);
}

absl::Status CheckRange(std::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gpt2 config: ", std::string(field), " is ", value, ", wanted ", min, " to ", max));
}

}  // namespace

absl::StatusOr<Gpt2Config> ParseGpt2Config(std::string_view json, std::vector<std::string>* notes) {
  const Json parsed = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError("gpt2 config: not a JSON object");
  RETURN_IF_ERROR(RefuseUnknownNumerics(parsed));
  Gpt2Config config;
  RETURN_IF_ERROR(ReadFields(parsed, config));
  RETURN_IF_ERROR(CheckGpt2Config(config));
  RETURN_IF_ERROR(NoteDropout(parsed, notes));
  return config;
}

absl::Status CheckGpt2Config(const Gpt2Config& config) {
  RETURN_IF_ERROR(CheckRange("vocab_size", config.vocab_size, 1, kMaxVocabSize));
  RETURN_IF_ERROR(CheckRange("n_positions", config.n_positions, 1, INT32_MAX));
  RETURN_IF_ERROR(CheckRange("n_embd", config.n_embd, 1, INT32_MAX));
  RETURN_IF_ERROR(CheckRange("n_layer", config.n_layer, 1, kMaxLayers));
  RETURN_IF_ERROR(CheckRange("n_head", config.n_head, 1, config.n_embd));
  RETURN_IF_ERROR(CheckRange("n_inner", config.n_inner, 0, INT32_MAX));
  if (config.n_embd % config.n_head != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpt2 config: n_embd ", config.n_embd, " is not divisible by n_head ", config.n_head));
  }
  if (!(config.layer_norm_epsilon >= 0) || !std::isfinite(config.layer_norm_epsilon)) {
    return absl::InvalidArgumentError(absl::StrCat("gpt2 config: layer_norm_epsilon is ", config.layer_norm_epsilon));
  }
  if (!(config.initializer_range >= 0) || !std::isfinite(config.initializer_range)) {
    return absl::InvalidArgumentError(absl::StrCat("gpt2 config: initializer_range is ", config.initializer_range));
  }
  absl::StatusOr<ActivationKind> activation = ParseActivationKind(config.activation_function);
  if (!activation.ok()) {
    return absl::Status(activation.status().code(),
                        absl::StrCat("gpt2 config: activation_function: ", activation.status().message()));
  }
  const int64_t widest = std::max({config.vocab_size, config.n_positions, 4 * config.n_embd, config.n_inner});
  return Shape::Create({config.n_embd, widest}).status();
}

absl::StatusOr<Gpt2Config> Gpt2Preset(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& preset : kPresets) {
    if (preset.name == name) {
      Gpt2Config config;
      config.vocab_size = preset.vocab_size;
      config.n_positions = preset.n_positions;
      config.n_embd = preset.n_embd;
      config.n_layer = preset.n_layer;
      config.n_head = preset.n_head;
      return config;
    }
    names.emplace_back(preset.name);
  }
  return absl::NotFoundError(
      absl::StrCat("no GPT-2 preset \"", std::string(name), "\"; there are ", absl::StrJoin(names, ", ")));
}

std::string Gpt2ConfigJson(const Gpt2Config& config) {
  Json json;
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = config.vocab_size;
  json["n_positions"] = config.n_positions;
  json["n_embd"] = config.n_embd;
  json["n_layer"] = config.n_layer;
  json["n_head"] = config.n_head;
  json["n_inner"] = config.n_inner > 0 ? Json(config.n_inner) : Json(nullptr);
  json["activation_function"] = config.activation_function;
  json["resid_pdrop"] = 0.0;
  json["embd_pdrop"] = 0.0;
  json["attn_pdrop"] = 0.0;
  json["layer_norm_epsilon"] = config.layer_norm_epsilon;
  json["initializer_range"] = config.initializer_range;
  json["scale_attn_weights"] = config.scale_attn_weights;
  json["scale_attn_by_inverse_layer_idx"] = config.scale_attn_by_inverse_layer_idx;
  json["reorder_and_upcast_attn"] = config.reorder_and_upcast_attn;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  return json.dump(2) + "\n";
}

}  // namespace fsdp
