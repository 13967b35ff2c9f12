// SPDX-License-Identifier: Apache-2.0
//
// A kind of model is an alternative of CausalLmConfig; overloads under one name (Make, ...) map it to the kind's
// functions, and std::visit picks them. So a new kind that lacks a function does not compile.
#include "fsdp/models/causal_lm.h"

#include "absl/strings/str_cat.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/models/llama.h"
#include "fsdp/nn/ops/kernel_options.h"

namespace fsdp {
namespace {

absl::Status UnknownModelType(std::string_view model_type) {
  return absl::InvalidArgumentError(
      absl::StrCat("model_type \"", std::string(model_type), "\": expected gpt2 or llama"));
}

// The functions of each kind, under one name for all kinds.
absl::StatusOr<std::unique_ptr<Module>> Make(const Gpt2Config& config) { return MakeGpt2(config); }
absl::StatusOr<std::unique_ptr<Module>> Make(const LlamaConfig& config) { return MakeLlama(config); }
std::string ConfigJson(const Gpt2Config& config) { return Gpt2ConfigJson(config); }
std::string ConfigJson(const LlamaConfig& config) { return LlamaConfigJson(config); }
RunMetadata AttributesOf(const Gpt2Config& config) { return Gpt2Attributes(config); }
RunMetadata AttributesOf(const LlamaConfig& config) { return LlamaAttributes(config); }
// No number of a trained model depends on these.
RunMetadata OtherAttributesOf(const Gpt2Config& config) { return {{"initializer_range", config.initializer_range}}; }
RunMetadata OtherAttributesOf(const LlamaConfig& config) {
  return {{"initializer_range", config.initializer_range}, {"max_position_embeddings", config.max_position_embeddings}};
}
AttentionShape HeadsOf(const Gpt2Config& config) {
  return {.num_heads = config.n_head, .head_dim = config.n_embd / config.n_head};
}
AttentionShape HeadsOf(const LlamaConfig& config) {
  return {
      .num_heads = config.num_attention_heads, .num_kv_heads = config.KeyValueHeads(), .head_dim = config.HeadDim()};
}
std::string_view ModelType(const Gpt2Config&) { return "gpt2"; }
std::string_view ModelType(const LlamaConfig&) { return "llama"; }

}  // namespace

absl::StatusOr<CausalLmConfig> ParseCausalLmConfig(std::string_view model_type, std::string_view json,
                                                   std::vector<std::string>* notes) {
  if (model_type == "gpt2") return ParseGpt2Config(json, notes);
  if (model_type == "llama") return ParseLlamaConfig(json, notes);
  return UnknownModelType(model_type);
}

absl::StatusOr<CausalLmConfig> CausalLmPreset(std::string_view model_type, std::string_view name) {
  if (model_type == "gpt2") return Gpt2Preset(name);
  if (model_type == "llama") return LlamaPreset(name);
  return UnknownModelType(model_type);
}

void SetAttention(AttentionKind attention, CausalLmConfig& config) {
  std::visit([attention](auto& kind) { kind.attention = attention; }, config);
}

void SetLossChunks(int64_t loss_chunks, CausalLmConfig& config) {
  std::visit([loss_chunks](auto& kind) { kind.loss_chunks = loss_chunks; }, config);
}

absl::StatusOr<std::unique_ptr<Module>> MakeCausalLm(const CausalLmConfig& config) {
  return std::visit([](const auto& kind) { return Make(kind); }, config);
}

bool IsTransformerBlock(Module& module) {
  return dynamic_cast<Gpt2Block*>(&module) != nullptr || dynamic_cast<LlamaDecoderLayer*>(&module) != nullptr;
}

std::string CausalLmConfigJson(const CausalLmConfig& config) {
  return std::visit([](const auto& kind) { return ConfigJson(kind); }, config);
}

RunMetadata CausalLmAttributes(const CausalLmConfig& config) {
  RunMetadata attributes = std::visit([](const auto& kind) { return AttributesOf(kind); }, config);
  // The two kinds share field names, so the kind itself must be compared too.
  attributes["model_type"] = std::string(std::visit([](const auto& kind) { return ModelType(kind); }, config));
  return attributes;
}

RunMetadata OtherCausalLmAttributes(const CausalLmConfig& config) {
  return std::visit([](const auto& kind) { return OtherAttributesOf(kind); }, config);
}

int64_t VocabSize(const CausalLmConfig& config) {
  return std::visit([](const auto& kind) { return kind.vocab_size; }, config);
}

std::optional<SequenceLimit> SequenceLimitOf(const CausalLmConfig& config) {
  // Rotary positions have no limit.
  const auto* gpt2 = std::get_if<Gpt2Config>(&config);
  if (gpt2 == nullptr) return std::nullopt;
  return SequenceLimit{.seq_len = gpt2->n_positions, .field = "n_positions"};
}

AttentionShape AttentionSizes(const CausalLmConfig& config, int64_t batch, int64_t seq_len) {
  AttentionShape shape = std::visit([](const auto& kind) { return HeadsOf(kind); }, config);
  const bool is_online = std::visit([](const auto& kind) { return kind.attention == AttentionKind::kOnline; }, config);
  // The other kinds differ by model, and have the same sizes.
  if (is_online) shape.rounding = AttentionRounding::kOnline;
  shape.batch = batch;
  shape.seq_len = seq_len;
  return shape;
}

std::string_view BasePrefix(const CausalLmConfig& config) {
  return std::holds_alternative<Gpt2Config>(config) ? "transformer." : "model.";
}

}  // namespace fsdp
