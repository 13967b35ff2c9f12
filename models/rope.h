// SPDX-License-Identifier: Apache-2.0
//
// RopeConfig: rotary position embedding as Hugging Face's config.json describes it: at the top level (rope_theta),
// under rope_parameters, or, in older files, under rope_scaling. Pair i of a head's elements is rotated at position t
// by the angle t * frequency[i]. (Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.)
#ifndef FSDP_MODELS_ROPE_H_
#define FSDP_MODELS_ROPE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/models/config_reader.h"
#include "fsdp/tensor/attributes.h"

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

// From the fields of a model's config.json. `max_position_embeddings` replaces an absent
// original_max_position_embeddings. kUnimplemented names a rope_type that is not one of the above.
absl::StatusOr<RopeConfig> ParseRope(const ConfigReader& model, int64_t max_position_embeddings);

// kInvalidArgument, naming the field, for a value out of its range.
absl::Status CheckRope(std::string_view model_type, const RopeConfig& rope);

// The value of rope_scaling in a config.json; null for kDefault. It does not contain rope_theta.
ConfigReader::Json RopeScalingJson(const RopeConfig& rope);

// rope_type and rope_theta, and the fields of rope_scaling that the type uses ("rope_scaling.factor", ...).
Attributes RopeAttributes(const RopeConfig& rope);

// The head_dim / 2 frequencies, with Hugging Face's bits. Precondition: head_dim is even, and CheckRope is OK.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace fsdp

#endif  // FSDP_MODELS_ROPE_H_
