// SPDX-License-Identifier: Apache-2.0
//
// Linear with an adapter against the plain Linear of the merged weight W + s B A, whose gradient G gives the gradients
// of the adapter: s B^T G of A, and s G A^T of B. Values are small whole numbers, so every sum is exact.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

constexpr int64_t kRows = 3, kIn = 5, kOut = 7, kRank = 2;
constexpr float kAlpha = 8;  // a scale of 4

Doubles WholeNumbers(int64_t n, int seed) {
  Doubles values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<double>((i * 7 + seed * 5) % 5 - 2);
  return values;
}

// [m, k] times [k, n], or with the first transposed.
Doubles Product(const Doubles& a, const Doubles& b, int64_t m, int64_t k, int64_t n, bool transpose_a = false) {
  Doubles c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) c[i * n + j] += (transpose_a ? a[l * m + i] : a[i * k + l]) * b[l * n + j];
    }
  }
  return c;
}

Doubles Transposed(const Doubles& a, int64_t rows, int64_t columns) {
  Doubles t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) t[j * rows + i] = a[i * columns + j];
  }
  return t;
}

Doubles Scaled(Doubles values) {
  for (double& value : values) value *= kAlpha / kRank;
  return values;
}

class LinearLoraTest : public testing::Test {
 protected:
  static void Bind(Parameter& parameter, const Doubles& values) {
    parameter.data = TestTensor(DType::kFloat32, parameter.shape, values);
    parameter.grad = TestTensor(DType::kFloat32, parameter.shape, Doubles(parameter.shape.numel()));
  }

  struct Pass {
    Doubles y, grad_x;
  };
  Pass Run(Linear& linear) {
    Tape tape(*stream_, *ops_);
    const absl::StatusOr<Tensor> y =
        linear.Forward(TestTensor(DType::kFloat32, {kRows, kIn}, WholeNumbers(kRows * kIn, 1)), tape);
    EXPECT_OK(y.status());
    if (!y.ok()) return {};
    const absl::StatusOr<Tensor> grad_x =
        linear.Backward(TestTensor(DType::kFloat32, {kRows, kOut}, WholeNumbers(kRows * kOut, 2)), tape);
    EXPECT_OK(grad_x.status());
    if (!grad_x.ok()) return {};
    EXPECT_OK(stream_->Synchronize());
    return {ValuesOf(*y), ValuesOf(*grad_x)};
  }

  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*TestDevice());
  const std::unique_ptr<Stream> stream_ = *TestDevice()->CreateStream("test");
  const Doubles w_ = WholeNumbers(kOut * kIn, 3), bias_ = WholeNumbers(kOut, 4);
  const Doubles a_ = WholeNumbers(kRank * kIn, 6), b_ = WholeNumbers(kOut * kRank, 8);
};

TEST_F(LinearLoraTest, ComputesAsTheMergedWeightAndTrainsOnlyTheAdapter) {
  Linear adapted(kIn, kOut, Initializer::Constant(0), /*bias=*/true);
  adapted.AddLora(kRank, kAlpha);
  adapted.AssignNames();
  const std::vector<Module::NamedParameter> parameters = adapted.NamedParameters();
  std::vector<std::string> names, trained;
  for (const auto& [name, parameter] : parameters) {
    names.push_back(name);
    if (parameter->requires_grad) trained.push_back(name);
  }
  ASSERT_THAT(names, ElementsAre("weight", "bias", "lora_A.weight", "lora_B.weight"));
  EXPECT_THAT(trained, ElementsAre("lora_A.weight", "lora_B.weight"));
  EXPECT_EQ(parameters[2].second->shape, Shape({kRank, kIn}));
  EXPECT_EQ(parameters[3].second->shape, Shape({kOut, kRank}));
  Bind(*parameters[0].second, w_);
  Bind(*parameters[1].second, bias_);
  Bind(*parameters[2].second, a_);
  Bind(*parameters[3].second, b_);

  Linear merged(kIn, kOut, Initializer::Constant(0), /*bias=*/true);
  const Doubles delta = Scaled(Product(b_, a_, kOut, kRank, kIn));
  Doubles whole = w_;
  for (size_t i = 0; i < whole.size(); ++i) whole[i] += delta[i];
  Bind(*merged.own_parameters()[0].second, whole);
  Bind(*merged.own_parameters()[1].second, bias_);

  const Pass got = Run(adapted), wanted = Run(merged);
  EXPECT_EQ(got.y, wanted.y);
  EXPECT_EQ(got.grad_x, wanted.grad_x);
  const Doubles grad_w = ValuesOf(merged.own_parameters()[0].second->grad);
  EXPECT_EQ(ValuesOf(parameters[2].second->grad), Scaled(Product(b_, grad_w, kRank, kOut, kIn, /*transpose_a=*/true)));
  EXPECT_EQ(ValuesOf(parameters[3].second->grad),
            Scaled(Product(grad_w, Transposed(a_, kRank, kIn), kOut, kIn, kRank)));
  EXPECT_EQ(ValuesOf(parameters[0].second->grad), Doubles(kOut * kIn));
  EXPECT_EQ(ValuesOf(parameters[1].second->grad), Doubles(kOut));
}

TEST_F(LinearLoraTest, BeginsAsTheLayerWithout) {
  Linear adapted(kIn, kOut, Initializer::Normal(0, 1)), plain(kIn, kOut, Initializer::Normal(0, 1));
  adapted.AddLora(kRank, kAlpha);
  for (Linear* one : {&adapted, &plain}) {
    one->AssignNames();
    ASSERT_OK(one->Materialize(*TestDevice(), 5));
  }
  EXPECT_EQ(Run(adapted).y, Run(plain).y);
  // A is not 0, so that B has a gradient.
  EXPECT_NE(ValuesOf(adapted.NamedParameters()[1].second->data), Doubles(kRank * kIn));
}

}  // namespace
}  // namespace fsdp
