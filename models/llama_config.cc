// SPDX-License-Identifier: Apache-2.0
//
// Reads and checks by the rules of gpt2_config.cc. Two counts may be null in a file, and then follow from others: they
// are 0 in the config, and KeyValueHeads() and HeadDim() have their values.
#include "fsdp/models/llama_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/suggestion.h"
#include "fsdp/models/config_reader.h"
#include "fsdp/models/rope.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {
namespace {

constexpr char kModelType[] = "llama";
constexpr int64_t kMaxLayers = 65536;
constexpr int64_t kMaxVocabSize = int64_t{1} << 31;  // tokens are int32

// These models were first trained on 8192 tokens. Llama 3.1 stretches the slow frequencies 8 times, the smaller models
// of 3.2 32 times.
constexpr RopeConfig kLlama31Rope = {.type = RopeConfig::Type::kLlama3,
                                     .theta = 500000,
                                     .factor = 8,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4,
                                     .original_max_position_embeddings = 8192};
constexpr RopeConfig kLlama32Rope = {.type = RopeConfig::Type::kLlama3,
                                     .theta = 500000,
                                     .factor = 32,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4,
                                     .original_max_position_embeddings = 8192};

// The tiny model has bytes as tokens, and the size of gpt2-tiny.
constexpr struct {
  std::string_view name;
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads;
  int64_t max_position_embeddings;
  double rms_norm_eps;
  bool tie_word_embeddings;
  RopeConfig rope;
} kPresets[] = {
    {"llama-tiny", 257, 128, 344, 4, 4, 2, 128, 1e-5, true, {}},  // 256 byte values and an end of text
    {"llama-2-7b", 32000, 4096, 11008, 32, 32, 32, 4096, 1e-5, false, {}},
    {"llama-2-13b", 32000, 5120, 13824, 40, 40, 40, 4096, 1e-5, false, {}},
    {"llama-2-34b", 32000, 8192, 22016, 48, 64, 8, 4096, 1e-5, false, {}},
    {"llama-2-70b", 32000, 8192, 28672, 80, 64, 8, 4096, 1e-5, false, {}},
    {"llama-3.1-8b", 128256, 4096, 14336, 32, 32, 8, 131072, 1e-5, false, kLlama31Rope},
    {"llama-3.1-70b", 128256, 8192, 28672, 80, 64, 8, 131072, 1e-5, false, kLlama31Rope},
    {"llama-3.1-405b", 128256, 16384, 53248, 126, 128, 8, 131072, 1e-5, false, kLlama31Rope},
    {"llama-3.2-1b", 128256, 2048, 8192, 16, 32, 8, 131072, 1e-5, true, kLlama32Rope},
};

// A count that may be null in the file, which is 0 in the config.
absl::Status ReadOptionalCount(const ConfigReader& reader, const std::string& field, int64_t* value) {
  FSDP_RETURN_IF_ERROR(reader.IntOrNull(field, value));
  const ConfigReader::Json* found = reader.Find(field);
  if (found != nullptr && *value <= 0) return reader.Wrong(field, *found, "a positive integer or null");
  return absl::OkStatus();
}

absl::Status ReadFields(const ConfigReader& reader, LlamaConfig& config) {
  FSDP_RETURN_IF_ERROR(reader.Int("vocab_size", &config.vocab_size));
  FSDP_RETURN_IF_ERROR(reader.Int("hidden_size", &config.hidden_size));
  FSDP_RETURN_IF_ERROR(reader.Int("intermediate_size", &config.intermediate_size));
  FSDP_RETURN_IF_ERROR(reader.Int("num_hidden_layers", &config.num_hidden_layers));
  FSDP_RETURN_IF_ERROR(reader.Int("num_attention_heads", &config.num_attention_heads));
  FSDP_RETURN_IF_ERROR(ReadOptionalCount(reader, "num_key_value_heads", &config.num_key_value_heads));
  FSDP_RETURN_IF_ERROR(ReadOptionalCount(reader, "head_dim", &config.head_dim));
  FSDP_RETURN_IF_ERROR(reader.String("hidden_act", &config.hidden_act));
  FSDP_RETURN_IF_ERROR(reader.Int("max_position_embeddings", &config.max_position_embeddings));
  FSDP_RETURN_IF_ERROR(reader.Double("initializer_range", &config.initializer_range));
  FSDP_RETURN_IF_ERROR(reader.Double("rms_norm_eps", &config.rms_norm_eps));
  if (reader.Find("pad_token_id") != nullptr) {
    // Null in the file means no padding token; 0 would be token 0.
    FSDP_RETURN_IF_ERROR(reader.Int("pad_token_id", &config.pad_token_id.emplace()));
  }
  FSDP_RETURN_IF_ERROR(reader.Bool("tie_word_embeddings", &config.tie_word_embeddings));
  FSDP_RETURN_IF_ERROR(reader.Bool("attention_bias", &config.attention_bias));
  FSDP_RETURN_IF_ERROR(reader.Bool("mlp_bias", &config.mlp_bias));
  // After max_position_embeddings, which is the default of a field of rope_scaling.
  FSDP_ASSIGN_OR_RETURN(config.rope, ParseRope(reader, config.max_position_embeddings));
  return absl::OkStatus();
}

// Heads must divide the width, key-value heads the heads, and pairs of elements the head, for rotation.
absl::Status CheckHeads(const LlamaConfig& config) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("llama config: hidden_size ", config.hidden_size,
                                                   " is not divisible by num_attention_heads ",
                                                   config.num_attention_heads));
  }
  if (config.num_attention_heads % config.KeyValueHeads() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("llama config: num_attention_heads ", config.num_attention_heads,
                                                   " is not divisible by num_key_value_heads ",
                                                   config.KeyValueHeads()));
  }
  if (config.HeadDim() % 2 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("llama config: head_dim is ", config.HeadDim(), ", wanted an even number, to rotate it in pairs"));
}

}  // namespace

absl::StatusOr<LlamaConfig> ParseLlamaConfig(std::string_view json, std::vector<std::string>* notes) {
  FSDP_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(kModelType, json));
  // Refused before the other fields are read: these change the model, so no config could describe it.
  FSDP_RETURN_IF_ERROR(reader.Refuse({"pruned_heads", "quantization_config"}));
  LlamaConfig config;
  FSDP_RETURN_IF_ERROR(ReadFields(reader, config));
  FSDP_RETURN_IF_ERROR(CheckLlamaConfig(config));
  FSDP_RETURN_IF_ERROR(reader.AddDropoutNote({"attention_dropout"}, /*default_value=*/0, notes));
  return config;
}

absl::Status CheckLlamaConfig(const LlamaConfig& config) {
  const auto check = [](std::string_view field, int64_t value, int64_t min, int64_t max) {
    return CheckConfigRange(kModelType, field, value, min, max);
  };
  FSDP_RETURN_IF_ERROR(check("vocab_size", config.vocab_size, 1, kMaxVocabSize));
  FSDP_RETURN_IF_ERROR(check("hidden_size", config.hidden_size, 1, INT32_MAX));
  FSDP_RETURN_IF_ERROR(check("intermediate_size", config.intermediate_size, 1, INT32_MAX));
  FSDP_RETURN_IF_ERROR(check("num_hidden_layers", config.num_hidden_layers, 1, kMaxLayers));
  FSDP_RETURN_IF_ERROR(check("num_attention_heads", config.num_attention_heads, 1, config.hidden_size));
  FSDP_RETURN_IF_ERROR(check("num_key_value_heads", config.num_key_value_heads, 0, config.num_attention_heads));
  // Bounds heads times head_dim, so that the widths below do not overflow.
  FSDP_RETURN_IF_ERROR(check("head_dim", config.head_dim, 0, INT32_MAX / config.num_attention_heads));
  FSDP_RETURN_IF_ERROR(check("max_position_embeddings", config.max_position_embeddings, 1, INT32_MAX));
  if (config.pad_token_id.has_value()) {
    // The range of torch.nn.Embedding's padding_idx.
    FSDP_RETURN_IF_ERROR(check("pad_token_id", *config.pad_token_id, -config.vocab_size, config.vocab_size - 1));
  }
  FSDP_RETURN_IF_ERROR(CheckHeads(config));
  FSDP_RETURN_IF_ERROR(CheckConfigNumber(kModelType, "rms_norm_eps", config.rms_norm_eps));
  FSDP_RETURN_IF_ERROR(CheckConfigNumber(kModelType, "initializer_range", config.initializer_range));
  FSDP_RETURN_IF_ERROR(CheckConfigActivation(kModelType, "hidden_act", config.hidden_act));
  FSDP_RETURN_IF_ERROR(CheckRope(kModelType, config.rope));
  // The largest of the model's matrices: if its number of elements fits a Shape, all others do.
  const int64_t widest =
      std::max({config.vocab_size, config.intermediate_size, config.num_attention_heads * config.HeadDim()});
  return Shape::Create({config.hidden_size, widest}).status();
}

absl::StatusOr<LlamaConfig> LlamaPreset(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& preset : kPresets) {
    if (preset.name == name) {
      LlamaConfig config;
      config.vocab_size = preset.vocab_size;
      config.hidden_size = preset.hidden_size;
      config.intermediate_size = preset.intermediate_size;
      config.num_hidden_layers = preset.num_hidden_layers;
      config.num_attention_heads = preset.num_attention_heads;
      config.num_key_value_heads = preset.num_key_value_heads;
      config.max_position_embeddings = preset.max_position_embeddings;
      config.rms_norm_eps = preset.rms_norm_eps;
      config.tie_word_embeddings = preset.tie_word_embeddings;
      config.rope = preset.rope;
      return config;
    }
    names.emplace_back(preset.name);
  }
  return absl::NotFoundError(absl::StrCat("no Llama preset \"", std::string(name), "\"", DidYouMean(name, names),
                                          "; there are ", absl::StrJoin(names, ", ")));
}

std::string LlamaConfigJson(const LlamaConfig& config) {
  ConfigReader::Json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = kModelType;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  // Not 0, so that other readers need no rule for it.
  json["num_key_value_heads"] = config.KeyValueHeads();
  json["head_dim"] = config.HeadDim();
  json["hidden_act"] = config.hidden_act;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["initializer_range"] = config.initializer_range;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["pad_token_id"] =
      config.pad_token_id.has_value() ? ConfigReader::Json(*config.pad_token_id) : ConfigReader::Json(nullptr);
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = RopeScalingJson(config.rope);
  json["attention_bias"] = config.attention_bias;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = config.mlp_bias;
  return json.dump(2) + "\n";
}

RunMetadata LlamaAttributes(const LlamaConfig& config) {
  RunMetadata attributes = RopeAttributes(config.rope);
  attributes.merge(RunMetadata{
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.KeyValueHeads()},
      {"head_dim", config.HeadDim()},
      {"hidden_act", config.hidden_act},
      {"rms_norm_eps", config.rms_norm_eps},
      {"pad_token_id", config.pad_token_id.has_value() ? AttributeValue(*config.pad_token_id) : AttributeValue()},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"attention_bias", config.attention_bias},
      {"mlp_bias", config.mlp_bias}});
  return attributes;
}

}  // namespace fsdp
