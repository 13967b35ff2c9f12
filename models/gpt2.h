// SPDX-License-Identifier: Apache-2.0
//
// GPT-2 exactly as Hugging Face's GPT2LMHeadModel defines it, module and parameter names included, without dropout.
// Plain modules, which do not depend on whether their parameters are sharded.
#ifndef FSDP_MODELS_GPT2_H_
#define FSDP_MODELS_GPT2_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/models/gpt2_block.h"
#include "fsdp/models/gpt2_config.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Input tokens int32 [B, T], T <= n_positions; output logits [B * T, vocab_size] in the compute dtype, on a GPU perhaps
// with padded rows (Tensor::is_contiguous): CrossEntropyLoss takes them, Tape::Contiguous copies them. With targets as
// a second input, int32 [B, T], the output is their loss, float32 [1], computed by LinearCrossEntropyLoss in
// loss_chunks; its backward takes an undefined tensor as the gradient. Parameters are meta (no memory yet), named, and
// have Hugging Face's Initializers (normal, residual projections scaled by 1 / sqrt(2 n_layer)). Returns the errors of
// CheckGpt2Config.
absl::StatusOr<std::unique_ptr<Module>> MakeGpt2(const Gpt2Config& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_GPT2_H_
