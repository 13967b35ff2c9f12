// SPDX-License-Identifier: Apache-2.0
//
// The effect of AttentionKind on a model: in float32 only the order of sums.
#include "fsdp/models/attention_kind.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/models/language_model_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class AttentionKindTest : public LanguageModelTest, public testing::WithParamInterface<const char*> {
 protected:
  struct Pass {
    double loss = 0;
    std::vector<float> grads;  // of all parameters
  };

  absl::StatusOr<Pass> Run(AttentionKind attention) {
    const std::string kind = GetParam();
    FSDP_ASSIGN_OR_RETURN(CausalLmConfig config, CausalLmPreset(kind, kind + "-tiny"));
    SetAttention(attention, config);
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, MakeCausalLm(config));
    FSDP_RETURN_IF_ERROR(model->Materialize(*device_, /*seed=*/5));
    Pass pass;
    FSDP_ASSIGN_OR_RETURN(pass.loss, Loss(*model, {1, 10, 3, 3, 0, 7, 2, 9, 4, 1}, {2, 5}, /*backward=*/true));
    for (const auto& [name, parameter] : model->NamedParameters()) {
      if (parameter->fqn != name) continue;
      const float* grad = parameter->grad.data_as<float>();
      pass.grads.insert(pass.grads.end(), grad, grad + parameter->grad.numel());
    }
    return pass;
  }
};

TEST_P(AttentionKindTest, InFloat32BothKindsComputeTheSameInAnotherOrder) {
  ASSERT_OK_AND_ASSIGN(const Pass eager, Run(AttentionKind::kEager));
  ASSERT_OK_AND_ASSIGN(const Pass online, Run(AttentionKind::kOnline));
  EXPECT_NEAR(online.loss, eager.loss, 1e-5);
  double squares = 0, difference = 0;
  ASSERT_EQ(online.grads.size(), eager.grads.size());
  for (size_t i = 0; i < eager.grads.size(); ++i) {
    squares += std::pow(eager.grads[i], 2);
    difference += std::pow(online.grads[i] - eager.grads[i], 2);
  }
  EXPECT_LT(difference, 1e-10 * squares);
  EXPECT_GT(difference, 0) << "the model ignores its config";
}

INSTANTIATE_TEST_SUITE_P(Models, AttentionKindTest, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp
