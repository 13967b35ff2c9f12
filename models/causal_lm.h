// SPDX-License-Identifier: Apache-2.0
//
// A causal language model of any kind that this project has, by the names of its config.json, for programs that train a
// model without knowing its kind. A new kind is one more alternative of CausalLmConfig.
#ifndef FSDP_MODELS_CAUSAL_LM_H_
#define FSDP_MODELS_CAUSAL_LM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/models/attention_kind.h"
#include "fsdp/models/gpt2_config.h"
#include "fsdp/models/llama_config.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/run_metadata.h"

namespace fsdp {

struct AttentionShape;  // nn/ops/kernel_options.h

// The config of a model of any kind; its alternative is the kind.
using CausalLmConfig = std::variant<Gpt2Config, LlamaConfig>;

// Reads the text of a config.json of kind `model_type`, "gpt2" or "llama"; see ParseGpt2Config and ParseLlamaConfig.
// kInvalidArgument if the file is of another kind, or if the kind is unknown.
absl::StatusOr<CausalLmConfig> ParseCausalLmConfig(std::string_view model_type, std::string_view json,
                                                   std::vector<std::string>* notes);

// A preset of kind `model_type`; kNotFound lists the presets.
absl::StatusOr<CausalLmConfig> CausalLmPreset(std::string_view model_type, std::string_view name);

// Sets how the model's attention rounds.
void SetAttention(AttentionKind attention, CausalLmConfig& config);

// Sets in how many chunks of rows the model computes a loss, from 1.
void SetLossChunks(int64_t loss_chunks, CausalLmConfig& config);

// Tokens int32 [B, T] to logits [B * T, vocab_size], whose rows may be padded on a GPU (gpt2.h), or tokens and targets
// to their loss; parameters are meta, that is without memory. Returns the errors of MakeGpt2 and MakeLlama.
absl::StatusOr<std::unique_ptr<Module>> MakeCausalLm(const CausalLmConfig& config);

// True if `module` is a transformer block of one of these models; for a wrap policy that makes each block a unit.
bool IsTransformerBlock(Module& module);

// The config.json that Hugging Face reads, indented, with a newline at its end.
std::string CausalLmConfigJson(const CausalLmConfig& config);

// "model_type", and the fields of the config that change the numbers of a trained model (Gpt2Attributes,
// LlamaAttributes). Models with equal attributes compute the same from the same parameters.
RunMetadata CausalLmAttributes(const CausalLmConfig& config);

// The other fields of the config, on which no number of a trained model depends: initializer_range, and Llama's
// max_position_embeddings.
RunMetadata OtherCausalLmAttributes(const CausalLmConfig& config);

// The number of tokens in the vocabulary: every token of the data must be below it.
int64_t VocabSize(const CausalLmConfig& config);

// The longest sequence that a model with learned positions takes, and the config's field for it.
struct SequenceLimit {
  int64_t seq_len = 0;
  std::string_view field;
};

// nullopt for a model with rotary positions (Llama), which takes any length.
std::optional<SequenceLimit> SequenceLimitOf(const CausalLmConfig& config);

// The sizes of the attention of each block on `batch` sequences of `seq_len` tokens, and whether it is kOnline; the
// blocks determine other roundings and the scale.
AttentionShape AttentionSizes(const CausalLmConfig& config, int64_t batch, int64_t seq_len);

// The prefix of parameter names in the model with its head, which files lack that were saved without the head:
// "transformer.", "model.".
std::string_view BasePrefix(const CausalLmConfig& config);

}  // namespace fsdp

#endif  // FSDP_MODELS_CAUSAL_LM_H_
