// SPDX-License-Identifier: Apache-2.0
//
// GPT-2 exactly as Hugging Face's GPT2LMHeadModel defines it, parameter names included, without dropout. Plain modules:
// nothing here knows that parameters may be sharded.
#ifndef FSDP_MODELS_GPT2_H_
#define FSDP_MODELS_GPT2_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nn/module.h"

namespace fsdp {

// GPT2Config's fields that change the numbers, with its defaults.
struct Gpt2Config {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  int64_t n_inner = 0;  // 0: 4 * n_embd
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
};

// From the text of a config.json. Every field that would change the numbers is obeyed or refused by name
// (kInvalidArgument or kUnimplemented); non-zero dropout is taken as 0 and reported in `notes`, one sentence each.
absl::StatusOr<Gpt2Config> ParseGpt2Config(std::string_view json, std::vector<std::string>* notes);

// "gpt2-tiny", "gpt2-124m", ...; kNotFound lists the presets.
absl::StatusOr<Gpt2Config> Gpt2Preset(std::string_view name);

// The config.json that Hugging Face reads.
std::string Gpt2ConfigJson(const Gpt2Config& config);

// Input tokens int32 [B, T], T <= n_positions; output logits [B * T, vocab_size] in the compute dtype. Parameters are
// meta, named, initialised as Hugging Face does (normal, residual projections scaled by 1 / sqrt(2 n_layer)).
absl::StatusOr<std::unique_ptr<Module>> MakeGpt2(const Gpt2Config& config);

// One transformer block; the unit of ModuleWrapPolicy<Gpt2Block>.
class Gpt2Block;

}  // namespace fsdp

#endif  // FSDP_MODELS_GPT2_H_
