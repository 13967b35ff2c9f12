// SPDX-License-Identifier: Apache-2.0
//
// What a GPU does for the gradients of a backward: nothing is set to zero, and no product reads the gradient that it is
// the first to write.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kBlocks = 2;
constexpr int64_t kVocabulary = 32, kBatch = 2, kLength = 8;

// Every position has a token, and every size is a multiple of 16 bytes, so that nothing lacks a gradient.
Gpt2Config SmallGpt2() {
  Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = kLength;
  config.n_embd = 16;
  config.n_layer = kBlocks;
  config.n_head = 2;
  return config;
}

struct Calls {
  int64_t memsets = 0;
  int64_t adding_products = 0;

  static Calls SoFar() { return {EmulatedMemsets(), EmulatedAddingProducts()}; }
};

// The calls of the backward of a batch.
absl::StatusOr<Calls> CallsOfBackward(FullyShardedDataParallel& model) {
  std::vector<int32_t> tokens(kBatch * kLength);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % kVocabulary);
  Tape tape = model.NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor batch, tape.Empty(DType::kInt32, {kBatch, kLength}));
  model.stream().CopyAsync(batch.data(), tokens.data(), batch.nbytes());
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch, tape));
  FSDP_ASSIGN_OR_RETURN(const auto made,
                        CrossEntropyLoss().ForwardBackward(logits, batch.View({kBatch * kLength}), 1, tape));
  FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  const Calls before = Calls::SoFar();
  FSDP_RETURN_IF_ERROR(model.Backward(made.grad_logits, tape).status());
  FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  const Calls after = Calls::SoFar();
  return Calls{after.memsets - before.memsets, after.adding_products - before.adding_products};
}

TEST(FirstGradientCallsTest, AFirstBackwardZeroesNothingAndItsProductsReadNoGradient) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Device> device, CreateCudaDevice(0));
    ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({device}));
    const std::shared_ptr<ProcessGroup> group = std::move(groups[0]);
    FsdpOptions options = {.auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>(), .init_seed = 11};
    if (dtype != DType::kFloat32) options.mixed_precision = {.param_dtype = dtype, .reduce_dtype = DType::kFloat32};
    ASSERT_OK_AND_ASSIGN(auto module, MakeGpt2(SmallGpt2()));
    ASSERT_OK_AND_ASSIGN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    // The products of a block's four weights, and of the tied head.
    constexpr int64_t kProducts = 4 * kBlocks + 1;
    for (int backward = 0; backward < 3; ++backward) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + std::to_string(backward));
      model->set_requires_gradient_sync(backward != 0);
      ASSERT_OK_AND_ASSIGN(const Calls calls, CallsOfBackward(*model));
      EXPECT_EQ(calls.memsets, 0);
      // The second adds to the gradients that the first, without synchronisation, left.
      EXPECT_EQ(calls.adding_products, backward == 1 ? kProducts : 0);
    }
  }
}

}  // namespace
}  // namespace fsdp
