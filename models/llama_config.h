// SPDX-License-Identifier: Apache-2.0
//
// LlamaConfig: the fields of Hugging Face's LlamaConfig that change the numbers, by their names and with their
// defaults, how attention rounds, and chunks of the loss.
#ifndef FSDP_MODELS_LLAMA_CONFIG_H_
#define FSDP_MODELS_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/models/attention_kind.h"
#include "fsdp/models/rope_config.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

// The defaults are llama-2-7b's except max_position_embeddings and rms_norm_eps.
struct LlamaConfig {
  // Rows of the token embedding, and logits per position. At most 2^31, since tokens are int32.
  int64_t vocab_size = 32000;

  // Widths of the residual stream and of the gated MLP.
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;

  // Number of decoder layers, at most 65536.
  int64_t num_hidden_layers = 32;

  // Heads of the queries, and of keys and values; their quotient is the number of query heads that share one key-value
  // head (grouped-query attention). 0 is null in config.json and means num_attention_heads.
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 0;

  // Elements of a head, an even number. 0 is null in config.json and means hidden_size / num_attention_heads.
  int64_t head_dim = 0;

  // The activation function of the MLP's gate, by its name in Hugging Face's ACT2FN; see ParseActivationKind.
  std::string hidden_act = "silu";

  // In tokens. It does not limit sequences, since rotary embeddings exist for every position.
  int64_t max_position_embeddings = 2048;

  // Standard deviation of the initial weights.
  double initializer_range = 0.02;

  // Added to the mean square in every RmsNorm.
  double rms_norm_eps = 1e-6;

  // The embedding of this token starts at 0 and is not trained. A negative id counts from the end of the vocabulary.
  std::optional<int64_t> pad_token_id;

  // lm_head.weight is model.embed_tokens.weight. If false, it is a separate parameter of the same shape.
  bool tie_word_embeddings = false;

  RopeConfig rope;

  // Biases of the four attention projections, and of the three projections of the MLP.
  bool attention_bias = false;
  bool mlp_bias = false;

  // Not in config.json.
  AttentionKind attention = AttentionKind::kEager;

  // Not in config.json: chunks of rows in which the model computes a loss (nn/linear_cross_entropy_loss.h).
  int64_t loss_chunks = 1;

  // The values of the two fields that may be 0.
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

// The fields above by their names, including rope's ("rope_theta", "rope_type", "rope_scaling.factor", ...; of
// rope_scaling the fields that its type uses): a checkpoint must agree about them for its parameters to be the same
// model. Without initializer_range, max_position_embeddings, attention and loss_chunks, on which no number of a trained
// model depends but by rounding. Counts of 0 are replaced by their actual values.
RunMetadata LlamaAttributes(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_LLAMA_CONFIG_H_
