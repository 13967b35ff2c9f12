// SPDX-License-Identifier: Apache-2.0
//
// Models that compute the loss of targets in chunks of rows, against CrossEntropyLoss on their logits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/models/language_model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class LossChunksTest : public LanguageModelTest {
 protected:
  static constexpr int64_t kBatch = 3, kSeqLen = 7;  // 21 rows

  struct Results {
    float loss = 0;
    std::map<std::string, std::vector<float>> grads;
  };

  // Both kinds of model, with a head of its own and one that is the embedding.
  static std::vector<CausalLmConfig> Configs() {
    std::vector<CausalLmConfig> configs;
    for (const bool tied : {false, true}) {
      Gpt2Config gpt2;
      gpt2.vocab_size = 29;
      gpt2.n_positions = 8;
      gpt2.n_embd = 12;
      gpt2.n_layer = 2;
      gpt2.n_head = 2;
      gpt2.tie_word_embeddings = tied;
      configs.emplace_back(gpt2);
      LlamaConfig llama;
      llama.vocab_size = 29;
      llama.hidden_size = 12;
      llama.intermediate_size = 7;
      llama.num_hidden_layers = 2;
      llama.num_attention_heads = 6;
      llama.num_key_value_heads = 2;
      llama.head_dim = 4;
      llama.tie_word_embeddings = tied;
      configs.emplace_back(llama);
    }
    return configs;
  }

  absl::StatusOr<std::unique_ptr<Module>> Make(CausalLmConfig config, int64_t loss_chunks) {
    SetLossChunks(loss_chunks, config);
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> model, MakeCausalLm(config));
    FSDP_RETURN_IF_ERROR(model->Materialize(*device_, /*seed=*/3));
    return model;
  }

  Tensor Tokens(int64_t batch, int64_t seq_len, int64_t vocabulary, int64_t factor) {
    Tensor tokens = *Tensor::Empty(*device_, DType::kInt32, {batch, seq_len});
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      tokens.data_as<int32_t>()[i] = static_cast<int32_t>(i * factor % vocabulary);
    }
    return tokens;
  }

  absl::Status Backward(Module& model, const Tensor& tokens, const Tensor& targets, bool by_model, Tensor& loss) {
    Tape tape(*stream_, *ops_);
    if (by_model) {
      tape.set_loss_scale(0.5f);
      FSDP_ASSIGN_OR_RETURN(const TensorList outputs, model.Forward(TensorList{tokens, targets}, tape));
      loss = outputs.at(0);
      return model.Backward(TensorList{Tensor()}, tape).status();
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(tokens, tape));
    FSDP_ASSIGN_OR_RETURN(const auto made, CrossEntropyLoss().ForwardBackward(logits, targets, 0.5f, tape));
    loss = made.loss;
    return model.Backward(made.grad_logits, tape).status();
  }

  absl::StatusOr<Results> Run(Module& model, bool by_model) {
    Tensor loss;
    FSDP_RETURN_IF_ERROR(
        Backward(model, Tokens(kBatch, kSeqLen, 29, 5), Tokens(kBatch, kSeqLen, 29, 11), by_model, loss));
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    Results results;
    results.loss = *loss.data_as<float>();
    for (const auto& [name, parameter] : model.NamedParameters()) {
      const auto* grad = parameter->grad.data_as<float>();
      results.grads[name].assign(grad, grad + parameter->grad.numel());
    }
    return results;
  }
};

TEST_F(LossChunksTest, ModelHasTheLossAndGradientsOfItsLogitsInAnyNumberOfChunks) {
  for (const CausalLmConfig& config : Configs()) {
    SCOPED_TRACE(CausalLmConfigJson(config));
    ASSERT_OK_AND_ASSIGN(const auto whole, Make(config, 1));
    ASSERT_OK_AND_ASSIGN(const Results expected, Run(*whole, /*by_model=*/false));
    for (const int64_t chunks : {1, 2, 4, 21}) {
      SCOPED_TRACE(chunks);
      ASSERT_OK_AND_ASSIGN(const auto model, Make(config, chunks));
      ASSERT_OK_AND_ASSIGN(const Results actual, Run(*model, /*by_model=*/true));
      EXPECT_NEAR(actual.loss, expected.loss, 1e-6 * expected.loss);
      for (const auto& [name, values] : expected.grads) {
        double largest = 0;
        for (const float value : values) largest = std::max<double>(largest, std::abs(value));
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_NEAR(actual.grads.at(name)[i], values[i], 1e-5 * largest) << name << " " << i;
        }
      }
    }
  }
}

TEST_F(LossChunksTest, ModelThatComputesItsForwardAgainHasTheSameBits) {
  for (const CausalLmConfig& config : Configs()) {
    ASSERT_OK_AND_ASSIGN(const auto kept, Make(config, 4));
    ASSERT_OK_AND_ASSIGN(const Results expected, Run(*kept, /*by_model=*/true));
    ASSERT_OK_AND_ASSIGN(const auto model, Make(config, 4));
    model->set_recompute(true);
    ASSERT_OK_AND_ASSIGN(const Results actual, Run(*model, /*by_model=*/true));
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_EQ(actual.grads, expected.grads);
  }
}

TEST_F(LossChunksTest, EvaluationHasTheLossOfTraining) {
  for (const CausalLmConfig& config : Configs()) {
    ASSERT_OK_AND_ASSIGN(const auto model, Make(config, 4));
    Tape tape(*stream_, *ops_, /*keep_for_backward=*/false);
    ASSERT_OK_AND_ASSIGN(
        const TensorList outputs,
        model->Forward(TensorList{Tokens(kBatch, kSeqLen, 29, 5), Tokens(kBatch, kSeqLen, 29, 11)}, tape));
    ASSERT_OK_AND_ASSIGN(const Results trained, Run(*model, /*by_model=*/true));
    EXPECT_EQ(*outputs.at(0).data_as<float>(), trained.loss);
  }
}

TEST_F(LossChunksTest, PeakOfMemoryIsLowerByTheLogitsOfTheOtherChunks) {
  Gpt2Config config = std::get<Gpt2Config>(Configs()[0]);
  config.vocab_size = 8192;
  config.n_positions = 256;
  config.n_layer = 1;
  const auto peak_of = [&](int64_t chunks) -> absl::StatusOr<int64_t> {
    FSDP_ASSIGN_OR_RETURN(const auto model, Make(config, std::max<int64_t>(chunks, 1)));
    const int64_t before = device_->allocated_bytes();
    device_->ResetPeak();
    Tensor loss;
    FSDP_RETURN_IF_ERROR(
        Backward(*model, Tokens(2, 256, 8192, 5), Tokens(2, 256, 8192, 11), /*by_model=*/chunks > 0, loss));
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return device_->peak_allocated_bytes() - before;
  };
  ASSERT_OK_AND_ASSIGN(const int64_t whole, peak_of(0));
  ASSERT_OK_AND_ASSIGN(const int64_t chunks, peak_of(8));
  const int64_t logits = 2 * 256 * 8192 * 4, grad = 8192 * 12 * 4;
  EXPECT_GE(whole - chunks, logits * 7 / 8 - grad);
}

TEST_F(LossChunksTest, WrongNumbersOfTensorsAreRefusedByName) {
  ASSERT_OK_AND_ASSIGN(const auto model, Make(Configs()[0], 2));
  Tape tape(*stream_, *ops_);
  const Tensor tokens = Tokens(kBatch, kSeqLen, 29, 5);
  EXPECT_THAT(model->Forward(TensorList{tokens, tokens, tokens}, tape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("GPT2LMHeadModel: forward was given 3 tensors, expected tokens, or tokens and "
                                 "targets")));
  ASSERT_OK(model->Forward(tokens, tape).status());
  EXPECT_THAT(model->Backward(TensorList{tokens, tokens}, tape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("backward was given 2 tensors")));
  EXPECT_THAT(model->Backward(TensorList{Tensor()}, tape).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("after another forward than its own")));
}

}  // namespace
}  // namespace fsdp
