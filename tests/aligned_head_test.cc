// SPDX-License-Identifier: Apache-2.0
//
// The products of a model's head on an emulated GPU, with a vocabulary for which rows of 16-bit logits would begin at
// odd addresses, such as GPT-2's 50,257.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/models/llama.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kVocabulary = 1003;
constexpr int64_t kBatch = 2, kLength = 5;

Gpt2Config SmallGpt2() {
  Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = 8;
  config.n_embd = 16;
  config.n_layer = 1;
  config.n_head = 2;
  return config;
}

LlamaConfig SmallLlama() {
  LlamaConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.tie_word_embeddings = false;
  return config;
}

class AlignedHeadTest : public testing::Test {
 protected:
  struct Pass {
    std::vector<float> loss;
    std::vector<std::string> gradients;
  };

  template <typename T>
  absl::StatusOr<std::vector<T>> OnHost(const Tensor& t) {
    std::vector<T> values(t.nbytes() / sizeof(T));
    stream_->CopyAsync(values.data(), t.data(), t.nbytes());
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return values;
  }

  absl::StatusOr<Tensor> Tokens(Tape& tape, int32_t shift) {
    std::vector<int32_t> values(kBatch * kLength);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>((i * 131 + shift) % kVocabulary);
    FSDP_ASSIGN_OR_RETURN(const Tensor tokens, tape.Empty(DType::kInt32, {kBatch, kLength}));
    stream_->CopyAsync(tokens.data(), values.data(), tokens.nbytes());
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return tokens;
  }

  // The loss and the gradients of a new model; with `copies`, the loss and backward get contiguous copies.
  absl::StatusOr<Pass> Run(Module& model, bool copies) {
    for (const auto& [name, parameter] : model.NamedParameters()) parameter->dtype = DType::kBFloat16;
    FSDP_RETURN_IF_ERROR(model.Materialize(*device_, /*seed=*/3));
    Tape tape(*stream_, *ops_);
    FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tokens(tape, 0));
    FSDP_ASSIGN_OR_RETURN(const Tensor targets, Tokens(tape, 77));
    FSDP_ASSIGN_OR_RETURN(Tensor logits, model.Forward(tokens, tape));
    EXPECT_EQ(logits.shape(), Shape({kBatch * kLength, kVocabulary}));
    EXPECT_EQ(logits.row_stride(), 1024);
    if (copies) {
      FSDP_ASSIGN_OR_RETURN(logits, tape.Contiguous(logits));
    }
    FSDP_ASSIGN_OR_RETURN(const auto made, CrossEntropyLoss().ForwardBackward(logits, targets, 1, tape));
    FSDP_RETURN_IF_ERROR(model.Backward(made.grad_logits, tape).status());
    Pass pass;
    FSDP_ASSIGN_OR_RETURN(pass.loss, OnHost<float>(made.loss));
    for (const auto& [name, parameter] : model.NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<char> bytes, OnHost<char>(parameter->grad));
      pass.gradients.emplace_back(bytes.begin(), bytes.end());
    }
    return pass;
  }

  void ExpectAlignedProducts(const std::function<std::unique_ptr<Module>()>& make) {
    const int64_t before = EmulatedMisalignedProducts();
    ASSERT_OK_AND_ASSIGN(const Pass padded, Run(*make(), /*copies=*/false));
    EXPECT_EQ(EmulatedMisalignedProducts(), before);
    ASSERT_OK_AND_ASSIGN(const Pass contiguous, Run(*make(), /*copies=*/true));
    EXPECT_EQ(EmulatedMisalignedProducts(), before + 2) << "the two products of the head's backward";
    EXPECT_EQ(padded.loss, contiguous.loss);
    EXPECT_EQ(padded.gradients, contiguous.gradients);
  }

  const std::shared_ptr<Device> device_ = *CreateCudaDevice(0);
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(AlignedHeadTest, Gpt2WithAnOddVocabularyHasNoMisalignedProduct) {
  ExpectAlignedProducts([] { return *MakeGpt2(SmallGpt2()); });
}

TEST_F(AlignedHeadTest, LlamaWithAnOddVocabularyHasNoMisalignedProduct) {
  ExpectAlignedProducts([] { return *MakeLlama(SmallLlama()); });
}

// Rows of odd lengths, from an odd address on, in each operand of a product that is large enough to be worth the
// copies.
TEST_F(AlignedHeadTest, ALargeProductOfMisalignedOperandsIsOneOfAlignedCopies) {
  const auto matrix = [this](int64_t rows, int64_t columns) -> absl::StatusOr<Tensor> {
    FSDP_ASSIGN_OR_RETURN(const Tensor all, Tensor::Empty(*device_, DType::kBFloat16, {rows * columns + 1}));
    return all.Slice({1, rows * columns + 1}).View({rows, columns});
  };
  ASSERT_OK_AND_ASSIGN(const Tensor a, matrix(501, 537));
  ASSERT_OK_AND_ASSIGN(const Tensor b, matrix(537, 1003));
  ASSERT_OK_AND_ASSIGN(const Tensor c, matrix(501, 1003));
  const int64_t before = EmulatedMisalignedProducts();
  ops_->Matmul(a, b, Tensor(), c, {}, *stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(EmulatedMisalignedProducts(), before);
}

}  // namespace
}  // namespace fsdp
