// SPDX-License-Identifier: Apache-2.0
//
// Module and parameter names are Hugging Face's, so a state dict of this model is one of LlamaForCausalLM and needs no
// mapping. rotary_emb is a child of the model only for its name: it has no parameters, and all layers share its table
// of rotations.
#include "fsdp/models/llama.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/models/model_with_head.h"
#include "fsdp/models/rope.h"
#include "fsdp/nn/embedding.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module_list.h"
#include "fsdp/nn/norm.h"
#include "fsdp/nn/rotary_embedding.h"

namespace fsdp {
namespace {

Initializer WeightInitializer(const LlamaConfig& config) {
  return Initializer::Normal(0, static_cast<float>(config.initializer_range));
}

// As in PyTorch's Embedding, a negative index counts from the end.
std::optional<int64_t> PaddingIndex(const LlamaConfig& config) {
  if (!config.pad_token_id.has_value() || *config.pad_token_id >= 0) return config.pad_token_id;
  return config.vocab_size + *config.pad_token_id;
}

// The model without its head: tokens [B, T] to hidden states [B, T, hidden_size].
class LlamaModel final : public Module {
 public:
  explicit LlamaModel(const LlamaConfig& config)
      : embed_tokens_(
            AddChild("embed_tokens", std::make_unique<Embedding>(config.vocab_size, config.hidden_size,
                                                                 WeightInitializer(config), PaddingIndex(config)))),
        layers_(AddChild("layers", std::make_unique<ModuleList>())),
        norm_(AddChild("norm", std::make_unique<RmsNorm>(config.hidden_size, config.rms_norm_eps))),
        rotary_emb_(AddChild("rotary_emb",
                             std::make_unique<RotaryEmbedding>(InverseFrequencies(config.rope, config.HeadDim())))) {
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_->Append(std::make_unique<LlamaDecoderLayer>(config, rotary_emb_));
    }
  }

  std::string_view type_name() const override { return "LlamaModel"; }
  const std::shared_ptr<Parameter>& token_weight() const { return embed_tokens_->weight(); }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& tokens, Tape& tape) override {
    if (tokens.shape().rank() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("llama: tokens ", tokens.shape().ToString(), " are not [batch, seq_len]"));
    }
    FSDP_ASSIGN_OR_RETURN(Tensor x, embed_tokens_->Forward(tokens, tape));
    for (const auto& [name, layer] : layers_->children()) {
      FSDP_ASSIGN_OR_RETURN(x, layer->Forward(x, tape));
    }
    return norm_->Forward(x, tape);
  }

  // Layers restore from the tape in the reverse of forward's order. The embedding is the first module, and tokens have
  // no gradient, so the returned tensor is undefined.
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(Tensor grad, norm_->Backward(grad_output, tape));
    for (auto layer = layers_->children().rbegin(); layer != layers_->children().rend(); ++layer) {
      FSDP_ASSIGN_OR_RETURN(grad, layer->second->Backward(grad, tape));
    }
    return embed_tokens_->Backward(grad, tape);
  }

  Embedding* embed_tokens_;
  ModuleList* layers_;
  RmsNorm* norm_;
  RotaryEmbedding* rotary_emb_;
};

class LlamaForCausalLm final : public ModelWithHead {
 public:
  explicit LlamaForCausalLm(const LlamaConfig& config) : ModelWithHead(config.loss_chunks) {
    LlamaModel* const model = AddChild("model", std::make_unique<LlamaModel>(config));
    SetParts(model, AddChild("lm_head", MakeHead(config, *model)));
  }

  std::string_view type_name() const override { return "LlamaForCausalLM"; }

 private:
  static std::unique_ptr<Linear> MakeHead(const LlamaConfig& config, const LlamaModel& model) {
    if (config.tie_word_embeddings) return std::make_unique<Linear>(model.token_weight());
    return std::make_unique<Linear>(config.hidden_size, config.vocab_size, WeightInitializer(config));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> MakeLlama(const LlamaConfig& config) {
  FSDP_RETURN_IF_ERROR(CheckLlamaConfig(config));
  std::unique_ptr<Module> model = std::make_unique<LlamaForCausalLm>(config);
  model->AssignNames();
  return model;
}

}  // namespace fsdp
