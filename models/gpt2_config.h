// SPDX-License-Identifier: Apache-2.0
//
// Gpt2Config: the fields of Hugging Face's GPT2Config that change the numbers, by their names and with their defaults.
#ifndef FSDP_MODELS_GPT2_CONFIG_H_
#define FSDP_MODELS_GPT2_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

// The defaults are those of gpt2-124m.
struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;  // the longest sequence: positions are learned
  int64_t n_embd = 768;        // width of the residual stream
  int64_t n_layer = 12;        // blocks
  int64_t n_head = 12;         // divides n_embd
  int64_t n_inner = 0;         // width of the MLP; 0, Hugging Face's null, is 4 * n_embd
  std::string activation_function = "gelu_new";
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;                // scores are divided by sqrt(n_embd / n_head)
  bool scale_attn_by_inverse_layer_idx = false;  // and by the block's index + 1
  bool reorder_and_upcast_attn = false;          // scores stay float32, also in bfloat16
  bool tie_word_embeddings = true;               // false: lm_head.weight is a parameter of its own
};

// Reads the text of a config.json. Every field that changes the numbers, under Hugging Face's aliases (hidden_size,
// ...) too, is either supported or an error that names it (kInvalidArgument or kUnimplemented); other fields are
// ignored. Dropout other than 0 is taken as 0 and reported in `notes`, one sentence for each field.
absl::StatusOr<Gpt2Config> ParseGpt2Config(std::string_view json, std::vector<std::string>* notes);

// kInvalidArgument, naming the field, if no model can have these sizes.
absl::Status CheckGpt2Config(const Gpt2Config& config);

// "gpt2-tiny", "gpt2-124m", ...; kNotFound lists the presets.
absl::StatusOr<Gpt2Config> Gpt2Preset(std::string_view name);

// The config.json that Hugging Face reads.
std::string Gpt2ConfigJson(const Gpt2Config& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_GPT2_CONFIG_H_
