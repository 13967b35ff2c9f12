// SPDX-License-Identifier: Apache-2.0
//
// Lion against its formula written out in float32, equal in every bit with every instruction set.
#include "fsdp/optim/lion.h"

#include <cmath>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

using LionTest = OptimizerFixture;

// No product is fused with a sum, and p is rounded once.
void PlainStep(const LionOptions& options, const Floats& grad, Floats& p, Floats& m) {
  const auto beta1 = static_cast<float>(options.beta1), rest1 = static_cast<float>(1 - options.beta1);
  const auto beta2 = static_cast<float>(options.beta2), rest2 = static_cast<float>(1 - options.beta2);
  const auto minus_lr = static_cast<float>(-options.lr);
  const auto minus_decay = static_cast<float>(-(options.lr * options.weight_decay));
  for (size_t i = 0; i < p.size(); ++i) {
    const float direction = m[i] * beta1 + rest1 * grad[i];
    const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction;
    p[i] = p[i] + (minus_lr * sign + minus_decay * p[i]);
    m[i] = m[i] * beta2 + rest2 * grad[i];
  }
}

TEST_F(LionTest, HasTheLoopsBits) {
  for (const LionOptions& options : {LionOptions{}, LionOptions{.lr = 0.1, .beta1 = 0.3, .weight_decay = 0.2}}) {
    for (const DType grad_dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      ForEachInstructionSet([&] {
        const auto parameter = MakeParameter(*device_, "w", 75, 3, grad_dtype);
        Floats p = Random(75, 1), m(75, 0.0f);
        Set(parameter->data, p);
        Lion optimizer({parameter.get()}, options);
        for (int step = 0; step < 4; ++step) {
          Floats gradient = Random(75, 10 + step);
          for (size_t i = 0; i < 20; ++i) gradient[i] = 0;  // elements that stay where they are
          SetGrad(*parameter, gradient);
          PlainStep(options, GradOf(*parameter), p, m);
          ASSERT_OK(optimizer.Step(*stream_));
          ASSERT_OK(stream_->Synchronize());
        }
        ExpectSameBits(parameter->data, p);
        ExpectSameBits(*optimizer.State(0, "exp_avg"), m);
      });
    }
  }
}

TEST_F(LionTest, AGradientThatIsNotANumberIsSeenInTheParameter) {
  const auto parameter = MakeParameter(*device_, "w", 5, 0);
  Set(parameter->data, Floats(5, 1.0f));
  SetGrad(*parameter, {NAN, 1, -1, 0, INFINITY});
  Lion optimizer({parameter.get()}, {.lr = 0.5});
  ASSERT_OK(optimizer.Step(*stream_));
  ASSERT_OK(stream_->Synchronize());
  const Floats values = Get(parameter->data);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_THAT(Floats(values.begin() + 1, values.end()), ElementsAre(0.5f, 1.5f, 1.0f, 0.5f));
}

}  // namespace
}  // namespace fsdp
