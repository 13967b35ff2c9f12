// SPDX-License-Identifier: Apache-2.0
//
// RopeConfig: rotary position embedding as Hugging Face's config.json describes it. Pair i of a head's elements is
// rotated at position t by the angle t * frequency[i]. (Su et al., "RoFormer: Enhanced Transformer with Rotary Position
// Embedding", 2021.)
#ifndef FSDP_MODELS_ROPE_CONFIG_H_
#define FSDP_MODELS_ROPE_CONFIG_H_

#include <cstdint>

namespace fsdp {

struct RopeConfig {
  enum class Type : uint8_t {
    kDefault,  // frequencies theta^(-2 i / head_dim)
    kLinear,   // the default ones divided by `factor`
    kLlama3,   // low frequencies divided by `factor`, high ones as in kDefault, those between interpolated
  };

  Type type = Type::kDefault;

  // The base of the frequencies, rope_theta in config.json. Positive.
  double theta = 10000;

  // For kLinear and kLlama3: by how much longer the context is than the one that the model was first trained on.
  double factor = 1;

  // For kLlama3: wavelengths above original_max_position_embeddings / low_freq_factor are stretched, those below
  // original_max_position_embeddings / high_freq_factor stay. high_freq_factor must be the larger one.
  double low_freq_factor = 1;
  double high_freq_factor = 4;

  // For kLlama3: the context, in tokens, that the model was first trained on. Positive.
  int64_t original_max_position_embeddings = 0;
};

}  // namespace fsdp

#endif  // FSDP_MODELS_ROPE_CONFIG_H_
