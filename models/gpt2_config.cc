// SPDX-License-Identifier: Apache-2.0
//
// Hugging Face's fields that change the numbers are read or refused; the others are ignored. Values are checked here
// once, for files, presets and callers alike, and the modules assume them right. The last check makes the shape of the
// largest parameter, which finds sizes whose product overflows.
#include "fsdp/models/gpt2_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/suggestion.h"
#include "fsdp/models/config_reader.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {
namespace {

constexpr char kModelType[] = "gpt2";
constexpr int64_t kMaxLayers = 65536;
constexpr int64_t kMaxVocabSize = int64_t{1} << 31;  // tokens are int32

// The tiny model has bytes as tokens. It learns the repository's own sources in about a minute on two cores.
constexpr struct {
  std::string_view name;
  int64_t vocab_size, n_positions, n_embd, n_layer, n_head;
} kPresets[] = {
    {"gpt2-tiny", 257, 128, 128, 4, 4},         // 256 byte values and an end of text
    {"gpt2-124m", 50257, 1024, 768, 12, 12},    // Hugging Face's "gpt2"
    {"gpt2-355m", 50257, 1024, 1024, 24, 16},   // "gpt2-medium"
    {"gpt2-774m", 50257, 1024, 1280, 36, 20},   // "gpt2-large"
    {"gpt2-1558m", 50257, 1024, 1600, 48, 25},  // "gpt2-xl"
    {"mingpt-175b", 50000, 2048, 12288, 96,
     96},  // the largest of the FSDP paper, arXiv 2304.11277; its head is tied here
};

// Four fields have a second name: GPT2Config.attribute_map lets programs use the names that other models have, and some
// of them write those into the file.
absl::Status ReadFields(const ConfigReader& reader, Gpt2Config& config) {
  FSDP_RETURN_IF_ERROR(reader.Int("vocab_size", &config.vocab_size));
  FSDP_RETURN_IF_ERROR(reader.Int("n_positions", &config.n_positions, "max_position_embeddings"));
  FSDP_RETURN_IF_ERROR(reader.Int("n_embd", &config.n_embd, "hidden_size"));
  FSDP_RETURN_IF_ERROR(reader.Int("n_layer", &config.n_layer, "num_hidden_layers"));
  FSDP_RETURN_IF_ERROR(reader.Int("n_head", &config.n_head, "num_attention_heads"));
  // 0 in the config means 4 n_embd, so a 0 in the file is refused.
  FSDP_RETURN_IF_ERROR(reader.IntOrNull("n_inner", &config.n_inner));
  const ConfigReader::Json* inner = reader.Find("n_inner");
  if (inner != nullptr && config.n_inner <= 0) return reader.Wrong("n_inner", *inner, "a positive integer or null");
  FSDP_RETURN_IF_ERROR(reader.String("activation_function", &config.activation_function));
  FSDP_RETURN_IF_ERROR(reader.Double("layer_norm_epsilon", &config.layer_norm_epsilon));
  FSDP_RETURN_IF_ERROR(reader.Double("initializer_range", &config.initializer_range));
  FSDP_RETURN_IF_ERROR(reader.Bool("scale_attn_weights", &config.scale_attn_weights));
  FSDP_RETURN_IF_ERROR(reader.Bool("scale_attn_by_inverse_layer_idx", &config.scale_attn_by_inverse_layer_idx));
  FSDP_RETURN_IF_ERROR(reader.Bool("reorder_and_upcast_attn", &config.reorder_and_upcast_attn));
  return reader.Bool("tie_word_embeddings", &config.tie_word_embeddings);
}

}  // namespace

absl::StatusOr<Gpt2Config> ParseGpt2Config(std::string_view json, std::vector<std::string>* notes) {
  FSDP_ASSIGN_OR_RETURN(const ConfigReader reader, ConfigReader::Parse(kModelType, json));
  FSDP_RETURN_IF_ERROR(reader.Refuse({"add_cross_attention", "pruned_heads", "quantization_config"}));
  Gpt2Config config;
  FSDP_RETURN_IF_ERROR(ReadFields(reader, config));
  // Here, because parsing a file accepts any integers.
  FSDP_RETURN_IF_ERROR(CheckGpt2Config(config));
  // Hugging Face trains with a dropout of 0.1 if the file does not name a rate.
  FSDP_RETURN_IF_ERROR(
      reader.AddDropoutNote({"resid_pdrop", "embd_pdrop", "attn_pdrop"}, /*default_value=*/0.1, notes));
  return config;
}

absl::Status CheckGpt2Config(const Gpt2Config& config) {
  const auto check = [](std::string_view field, int64_t value, int64_t min, int64_t max) {
    return CheckConfigRange(kModelType, field, value, min, max);
  };
  FSDP_RETURN_IF_ERROR(check("vocab_size", config.vocab_size, 1, kMaxVocabSize));
  FSDP_RETURN_IF_ERROR(check("n_positions", config.n_positions, 1, INT32_MAX));
  FSDP_RETURN_IF_ERROR(check("n_embd", config.n_embd, 1, INT32_MAX));
  FSDP_RETURN_IF_ERROR(check("n_layer", config.n_layer, 1, kMaxLayers));
  FSDP_RETURN_IF_ERROR(check("n_head", config.n_head, 1, config.n_embd));
  FSDP_RETURN_IF_ERROR(check("n_inner", config.n_inner, 0, INT32_MAX));
  if (config.n_embd % config.n_head != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpt2 config: n_embd ", config.n_embd, " is not divisible by n_head ", config.n_head));
  }
  FSDP_RETURN_IF_ERROR(CheckConfigNumber(kModelType, "layer_norm_epsilon", config.layer_norm_epsilon));
  FSDP_RETURN_IF_ERROR(CheckConfigNumber(kModelType, "initializer_range", config.initializer_range));
  FSDP_RETURN_IF_ERROR(CheckConfigActivation(kModelType, "activation_function", config.activation_function));
  // Every weight has n_embd as one of its sizes; c_attn's 3 * n_embd is below 4 * n_embd.
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
  return absl::NotFoundError(absl::StrCat("no GPT-2 preset \"", std::string(name), "\"", DidYouMean(name, names),
                                          "; there are ", absl::StrJoin(names, ", ")));
}

std::string Gpt2ConfigJson(const Gpt2Config& config) {
  ConfigReader::Json json;
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = config.vocab_size;
  json["n_positions"] = config.n_positions;
  json["n_embd"] = config.n_embd;
  json["n_layer"] = config.n_layer;
  json["n_head"] = config.n_head;
  json["n_inner"] = config.n_inner > 0 ? ConfigReader::Json(config.n_inner) : ConfigReader::Json(nullptr);
  json["activation_function"] = config.activation_function;
  // Written although they are 0 here: an absent rate would be 0.1 to Hugging Face.
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

RunMetadata Gpt2Attributes(const Gpt2Config& config) {
  return {{"vocab_size", config.vocab_size},
          {"n_positions", config.n_positions},
          {"n_embd", config.n_embd},
          {"n_layer", config.n_layer},
          {"n_head", config.n_head},
          {"n_inner", config.n_inner > 0 ? config.n_inner : 4 * config.n_embd},
          {"activation_function", config.activation_function},
          {"layer_norm_epsilon", config.layer_norm_epsilon},
          {"scale_attn_weights", config.scale_attn_weights},
          {"scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx},
          {"reorder_and_upcast_attn", config.reorder_and_upcast_attn},
          {"tie_word_embeddings", config.tie_word_embeddings}};
}

}  // namespace fsdp
