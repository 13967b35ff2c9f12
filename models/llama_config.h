// SPDX-License-Identifier: Apache-2.0
//
// LlamaConfig: the fields of Hugging Face's LlamaConfig that change the numbers, by their names and with their
// defaults.
#ifndef FSDP_MODELS_LLAMA_CONFIG_H_
#define FSDP_MODELS_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/models/rope.h"

namespace fsdp {

// The defaults are those of llama-2-7b but for max_position_embeddings and rms_norm_eps.
struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;         // width of the residual stream
  int64_t intermediate_size = 11008;  // width of the MLP
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 0;  // 0, Hugging Face's null, is num_attention_heads
  int64_t head_dim = 0;             // 0, Hugging Face's null, is hidden_size / num_attention_heads
  std::string hidden_act = "silu";
  int64_t max_position_embeddings = 2048;  // no limit: rotary embeddings have none
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  std::optional<int64_t> pad_token_id;  // its embedding starts at 0 and is not trained; below 0 counts from the end
  bool tie_word_embeddings = false;     // true: lm_head.weight is model.embed_tokens.weight
  RopeConfig rope;
  bool attention_bias = false;
  bool mlp_bias = false;

  // The values of the two counts that may be 0.
  int64_t KeyValueHeads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads; }
  int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
};

// Reads the text of a config.json. Every field that changes the numbers is either supported or an error that names it
// (kInvalidArgument or kUnimplemented); other fields are ignored. Dropout other than 0 is taken as 0 and reported in
// `notes`, one sentence for each field.
absl::StatusOr<LlamaConfig> ParseLlamaConfig(std::string_view json, std::vector<std::string>* notes);

// kInvalidArgument, naming the field, if no model can have these sizes.
absl::Status CheckLlamaConfig(const LlamaConfig& config);

// "llama-tiny", "llama-3.1-8b", ...; kNotFound lists the presets.
absl::StatusOr<LlamaConfig> LlamaPreset(std::string_view name);

// The config.json that Hugging Face reads.
std::string LlamaConfigJson(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_LLAMA_CONFIG_H_
