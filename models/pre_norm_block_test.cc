// SPDX-License-Identifier: Apache-2.0
//
// Blocks call their norms with a residual to add if the norms have no hooks, and without one if they do; both must give
// the same numbers.
#include "fsdp/models/pre_norm_block.h"

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/models/language_model_testutil.h"
#include "fsdp/models/llama.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Counts the tensors that a norm is called with.
class CountingHooks final : public ModuleHooks {
 public:
  absl::Status PreForward(Module&, absl::Span<Tensor> inputs, Tape&) override { return Count(inputs); }
  absl::Status PostForward(Module&, absl::Span<Tensor> outputs, Tape&) override { return Count(outputs); }
  absl::Status PreBackward(Module&, absl::Span<Tensor> grad_outputs, Tape&) override { return Count(grad_outputs); }
  absl::Status PostBackward(Module&, absl::Span<Tensor> grad_inputs, Tape&) override { return Count(grad_inputs); }

  int calls = 0;
  size_t most_tensors = 0;

 private:
  absl::Status Count(absl::Span<Tensor> tensors) {
    ++calls;
    most_tensors = std::max(most_tensors, tensors.size());
    return absl::OkStatus();
  }
};

// A loss and all gradients.
struct Results {
  double loss = 0;
  std::vector<float> grads;
};

class PreNormBlockTest : public LanguageModelTest {
 protected:
  static std::vector<Module*> Norms(Module& model) {
    std::vector<Module*> norms;
    for (const auto& [path, module] : model.NamedModules()) {
      if (dynamic_cast<Norm*>(module) != nullptr) norms.push_back(module);
    }
    return norms;
  }

  // The results of `model`, after prepare(norm) of each of its norms.
  Results Run(Module& model, const std::function<void(Module&)>& prepare) {
    EXPECT_OK(model.Materialize(*device_, /*seed=*/5));
    for (Module* norm : Norms(model)) prepare(*norm);
    const absl::StatusOr<double> loss = Loss(model, {1, 10, 3, 3, 0, 7, 2, 9, 4, 1}, {2, 5}, /*backward=*/true);
    EXPECT_OK(loss);
    Results results = {*loss, {}};
    for (const auto& [name, parameter] : model.NamedParameters()) {
      const Tensor& grad = parameter->grad;
      results.grads.insert(results.grads.end(), grad.data_as<float>(), grad.data_as<float>() + grad.numel());
    }
    return results;
  }

  // `make` makes the model anew.
  void ExpectSameResults(const std::function<std::unique_ptr<Module>()>& make) {
    const Results fused = Run(*make(), [](Module&) {});
    CountingHooks hooks;
    const Results watched = Run(*make(), [&](Module& norm) { norm.set_hooks(&hooks); });
    const Results recomputed = Run(*make(), [](Module& norm) { norm.set_recompute(true); });
    EXPECT_EQ(watched.loss, fused.loss);
    EXPECT_EQ(watched.grads, fused.grads);
    EXPECT_EQ(recomputed.loss, fused.loss);
    EXPECT_EQ(recomputed.grads, fused.grads);
    // Two blocks of two norms, and the last norm of the model.
    EXPECT_EQ(hooks.calls, 5 * 4);
    EXPECT_EQ(hooks.most_tensors, 1);
  }
};

TEST_F(PreNormBlockTest, NormsThatAreWatchedOrRecomputedGiveGpt2TheSameNumbers) {
  Gpt2Config config;
  config.vocab_size = 11;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = 2;
  config.n_head = 2;
  ExpectSameResults([&] { return *MakeGpt2(config); });
}

TEST_F(PreNormBlockTest, NormsThatAreWatchedOrRecomputedGiveLlamaTheSameNumbers) {
  LlamaConfig config;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.max_position_embeddings = 6;
  ExpectSameResults([&] { return *MakeLlama(config); });
}

}  // namespace
}  // namespace fsdp
