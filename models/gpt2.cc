// SPDX-License-Identifier: Apache-2.0
//
// Module and parameter names are Hugging Face's, so a state dict of this model is one of GPT2LMHeadModel and needs no
// mapping. Backward is explicit, in the reverse order of forward. With tied embeddings lm_head.weight is the same
// Parameter as wte.weight: both add to one gradient, and state dicts have an alias for the second name.
#include "fsdp/models/gpt2.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/models/model_with_head.h"
#include "fsdp/nn/embedding.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module_list.h"
#include "fsdp/nn/norm.h"

namespace fsdp {
namespace {

// The model without its head: tokens [B, T] to hidden states [B, T, n_embd].
class Gpt2Model final : public Module {
 public:
  explicit Gpt2Model(const Gpt2Config& config)
      : wte_(AddChild("wte",
                      std::make_unique<Embedding>(config.vocab_size, config.n_embd, EmbeddingInitializer(config)))),
        wpe_(AddChild("wpe", std::make_unique<PositionEmbedding>(config.n_positions, config.n_embd,
                                                                 EmbeddingInitializer(config)))),
        h_(AddChild("h", std::make_unique<ModuleList>())),
        ln_f_(AddChild("ln_f", std::make_unique<LayerNorm>(config.n_embd, config.layer_norm_epsilon))) {
    for (int64_t i = 0; i < config.n_layer; ++i) h_->Append(std::make_unique<Gpt2Block>(config, i));
  }

  static Initializer EmbeddingInitializer(const Gpt2Config& config) {
    return Initializer::Normal(0, static_cast<float>(config.initializer_range));
  }

  std::string_view type_name() const override { return "GPT2Model"; }
  const std::shared_ptr<Parameter>& token_weight() const { return wte_->weight(); }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& tokens, Tape& tape) override {
    if (tokens.shape().rank() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("gpt2: tokens ", tokens.shape().ToString(), " are not [batch, seq_len]"));
    }
    FSDP_ASSIGN_OR_RETURN(Tensor x, wte_->Forward(tokens, tape));
    FSDP_ASSIGN_OR_RETURN(x, wpe_->Forward(x, tape));
    for (const auto& [name, block] : h_->children()) {
      FSDP_ASSIGN_OR_RETURN(x, block->Forward(x, tape));
    }
    return ln_f_->Forward(x, tape);
  }

  // The gradient of x passes through wpe_ unchanged, because positions are added; wte_ turns it into the gradient of
  // its rows. Tokens have no gradient.
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(Tensor grad, ln_f_->Backward(grad_output, tape));
    for (auto block = h_->children().rbegin(); block != h_->children().rend(); ++block) {
      FSDP_ASSIGN_OR_RETURN(grad, block->second->Backward(grad, tape));
    }
    FSDP_ASSIGN_OR_RETURN(grad, wpe_->Backward(grad, tape));
    return wte_->Backward(grad, tape);
  }

  Embedding* wte_;
  PositionEmbedding* wpe_;
  ModuleList* h_;
  LayerNorm* ln_f_;
};

class Gpt2LmHeadModel final : public ModelWithHead {
 public:
  explicit Gpt2LmHeadModel(const Gpt2Config& config) : ModelWithHead(config.loss_chunks) {
    Gpt2Model* const transformer = AddChild("transformer", std::make_unique<Gpt2Model>(config));
    SetParts(transformer, AddChild("lm_head", MakeHead(config, *transformer)));
  }

  std::string_view type_name() const override { return "GPT2LMHeadModel"; }

 private:
  static std::unique_ptr<Linear> MakeHead(const Gpt2Config& config, const Gpt2Model& transformer) {
    if (config.tie_word_embeddings) return std::make_unique<Linear>(transformer.token_weight());
    return std::make_unique<Linear>(config.n_embd, config.vocab_size, Gpt2Model::EmbeddingInitializer(config));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> MakeGpt2(const Gpt2Config& config) {
  FSDP_RETURN_IF_ERROR(CheckGpt2Config(config));
  std::unique_ptr<Module> model = std::make_unique<Gpt2LmHeadModel>(config);
  model->AssignNames();
  return model;
}

}  // namespace fsdp
