// SPDX-License-Identifier: Apache-2.0
//
// Gpt2Config: the fields of Hugging Face's GPT2Config that change the numbers, by their names and with their defaults,
// how attention rounds, and chunks of the loss.
#ifndef FSDP_MODELS_GPT2_CONFIG_H_
#define FSDP_MODELS_GPT2_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/models/attention_kind.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

// The defaults are gpt2-124m's.
struct Gpt2Config {
  // Rows of the token embedding, and logits per position. At most 2^31, since tokens are int32.
  int64_t vocab_size = 50257;

  // The longest sequence, in tokens: positions are learned, one row of wpe.weight each.
  int64_t n_positions = 1024;

  // Width of the residual stream.
  int64_t n_embd = 768;

  // Number of blocks, at most 65536.
  int64_t n_layer = 12;

  // Attention heads of a block. Must divide n_embd.
  int64_t n_head = 12;

  // Width of the MLP. 0 is null in config.json and means 4 * n_embd.
  int64_t n_inner = 0;

  // The MLP's activation function, by its name in Hugging Face's ACT2FN; see ParseActivationKind.
  std::string activation_function = "gelu_new";

  // Added to the variance in every LayerNorm.
  double layer_norm_epsilon = 1e-5;

  // Standard deviation of the initial weights; smaller for projections that add to the residual stream.
  double initializer_range = 0.02;

  // Attention scores are divided by sqrt(n_embd / n_head), and, by the second flag, also by the block's index + 1.
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;

  // Attention scores stay float32 even if the model computes in bfloat16. Under AttentionKind::kOnline they always do.
  bool reorder_and_upcast_attn = false;

  // lm_head.weight is wte.weight. If false, it is a separate parameter of the same shape.
  bool tie_word_embeddings = true;

  // Not in config.json.
  AttentionKind attention = AttentionKind::kEager;

  // Not in config.json: chunks of rows in which the model computes a loss (nn/linear_cross_entropy_loss.h).
  int64_t loss_chunks = 1;
};

// Reads the text of a config.json. Every field that changes the numbers, including Hugging Face's aliases (hidden_size,
// ...), is either supported or an error that names it (kInvalidArgument or kUnimplemented); other fields are ignored.
// Dropout other than 0 is taken as 0 and reported in `notes`, one sentence for each field.
absl::StatusOr<Gpt2Config> ParseGpt2Config(std::string_view json, std::vector<std::string>* notes);

// kInvalidArgument, naming the field, if no model can have these sizes.
absl::Status CheckGpt2Config(const Gpt2Config& config);

// "gpt2-tiny", "gpt2-124m", ...; kNotFound lists the presets.
absl::StatusOr<Gpt2Config> Gpt2Preset(std::string_view name);

// The config.json that Hugging Face reads: every field above but attention and loss_chunks, the three dropout rates as
// 0, and null for an n_inner of 0.
std::string Gpt2ConfigJson(const Gpt2Config& config);

// The fields above by their names: a checkpoint must agree about them for its parameters to be the same model. Without
// initializer_range, on which only random weights depend, attention and loss_chunks. An n_inner of 0 is replaced by the
// actual width.
RunMetadata Gpt2Attributes(const Gpt2Config& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_GPT2_CONFIG_H_
