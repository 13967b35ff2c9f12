// SPDX-License-Identifier: Apache-2.0
//
// A RopeConfig from and to a config.json, and its frequencies. config.json has it at the top level (rope_theta), under
// rope_parameters, or, in older files, under rope_scaling.
#ifndef FSDP_MODELS_ROPE_H_
#define FSDP_MODELS_ROPE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/models/config_reader.h"
#include "fsdp/models/rope_config.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

// From the fields of a model's config.json. `max_position_embeddings` replaces an absent
// original_max_position_embeddings. kUnimplemented names a rope_type that is not one of the above.
absl::StatusOr<RopeConfig> ParseRope(const ConfigReader& model, int64_t max_position_embeddings);

// kInvalidArgument, naming the field, for a value out of its range.
absl::Status CheckRope(std::string_view model_type, const RopeConfig& rope);

// The value of rope_scaling in a config.json; null for kDefault. It does not contain rope_theta.
ConfigReader::Json RopeScalingJson(const RopeConfig& rope);

// rope_type and rope_theta, and the fields of rope_scaling that the type uses ("rope_scaling.factor", ...).
RunMetadata RopeAttributes(const RopeConfig& rope);

// The head_dim / 2 frequencies, with Hugging Face's bits. Precondition: head_dim is even, and CheckRope is OK.
std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace fsdp

#endif  // FSDP_MODELS_ROPE_H_
