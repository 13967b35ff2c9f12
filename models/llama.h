// SPDX-License-Identifier: Apache-2.0
//
// Llama exactly as Hugging Face's LlamaForCausalLM defines it, module and parameter names included, without dropout.
// Plain modules, which do not depend on whether their parameters are sharded.
#ifndef FSDP_MODELS_LLAMA_H_
#define FSDP_MODELS_LLAMA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/models/llama_config.h"
#include "fsdp/models/llama_decoder_layer.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Input tokens int32 [B, T]; output logits [B * T, vocab_size] in the compute dtype, on a GPU perhaps with padded rows
// (Tensor::is_contiguous): CrossEntropyLoss takes them, Tape::Contiguous copies them. With targets as a second input,
// int32 [B, T], the output is their loss, float32 [1], computed by LinearCrossEntropyLoss in loss_chunks; its backward
// takes an undefined tensor as the gradient. Parameters are meta (no memory yet), named, and have Hugging Face's
// Initializers (normal; norms 1, biases and the padding token's embedding 0). Returns the errors of CheckLlamaConfig.
absl::StatusOr<std::unique_ptr<Module>> MakeLlama(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_LLAMA_H_
