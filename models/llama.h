// SPDX-License-Identifier: Apache-2.0
//
// Llama exactly as Hugging Face's LlamaForCausalLM defines it, module and parameter names included, without dropout.
// Plain modules: nothing here knows that parameters may be sharded.
#ifndef FSDP_MODELS_LLAMA_H_
#define FSDP_MODELS_LLAMA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/models/llama_config.h"
#include "fsdp/models/llama_decoder_layer.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Input tokens int32 [B, T]; output logits [B * T, vocab_size] in the compute dtype. Parameters are meta, named,
// initialised as Hugging Face does (normal; norms 1, biases and the padding token's embedding 0).
absl::StatusOr<std::unique_ptr<Module>> MakeLlama(const LlamaConfig& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_LLAMA_H_
