// SPDX-License-Identifier: Apache-2.0
//
// Muon's orthogonalisation, parameters and options; torch_optimizers_test.cc compares its steps with PyTorch's, and
// fsdp/every_optimizer_test.cc trains sharded matrices.
#include "fsdp/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/newton_schulz.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

using MuonTest = OptimizerFixture;

// X X^T of a matrix with singular values near 1 is near the identity, up to the 0.3 by which they differ from it.
TEST_F(MuonTest, NewtonSchulzMakesRowsOrColumnsOrthogonal) {
  ASSERT_OK_AND_ASSIGN(const auto newton_schulz, NewtonSchulz::Create(*device_));
  for (const auto& [rows, columns] : {std::pair(6, 40), std::pair(40, 6), std::pair(4, 16), std::pair(1, 5)}) {
    Floats matrix = Random(rows * columns, 5);
    ASSERT_OK(newton_schulz->Run({}, rows, columns, matrix));
    const int m = std::min(rows, columns), n = std::max(rows, columns);
    const auto at = [&, columns = columns, rows = rows](int i, int j) {
      return rows > columns ? matrix[j * columns + i] : matrix[i * columns + j];
    };
    for (int i = 0; i < m; ++i) {
      for (int k = 0; k < m; ++k) {
        double dot = 0;
        for (int j = 0; j < n; ++j) dot += at(i, j) * at(k, j);
        EXPECT_NEAR(dot, i == k ? 1 : 0, 0.6) << rows << " by " << columns << ": " << i << ", " << k;
      }
    }
  }
}

TEST_F(MuonTest, AMatrixOfZerosStaysZero) {
  ASSERT_OK_AND_ASSIGN(const auto newton_schulz, NewtonSchulz::Create(*device_));
  Floats matrix(15, 0.0f);
  ASSERT_OK(newton_schulz->Run({}, 3, 5, matrix));
  EXPECT_EQ(matrix, Floats(15, 0.0f));
}

TEST_F(MuonTest, AFactorHasTheBitsOfScalingBeforeAndFoundInfSkips) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto folded = Make("a", {5, 7}, dtype), scaled = Make("b", {5, 7}, dtype);
    Muon with({folded.get()}, {}), without({scaled.get()}, {});
    const Floats before = Get(folded->data);
    with.set_found_inf(Scalar(1));
    ASSERT_OK(with.Step(*stream_));
    with.TakeBackStep();
    EXPECT_EQ(with.step_count(0), 0);
    ExpectSameBits(folded->data, before);
    with.set_grad_factor(Scalar(0.3f));
    ASSERT_OK(with.Step(*stream_));
    Floats gradient = GradOf(*scaled);
    for (float& g : gradient) g *= 0.3f;
    SetGrad(*scaled, gradient);
    ASSERT_OK(without.Step(*stream_));
    ExpectSameBits(folded->data, Get(scaled->data));
    EXPECT_NE(Get(folded->data), before);
  }
}

TEST_F(MuonTest, AParameterThatIsNoMatrixAndASliceWithoutAnExchangeAreNamed) {
  for (const Shape& shape : {Shape({5}), Shape({2, 3, 5})}) {
    const auto parameter = Make("w", shape);
    EXPECT_THAT(Muon({parameter.get()}, {}).Step(*stream_),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("Muon: parameter \"w\" " + shape.ToString() + " is no matrix")));
  }
  const auto slice = MakeParameter(*device_, "s", 75, 0);
  EXPECT_THAT(Muon({slice.get()}, {}).Step(*stream_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Muon: this rank has the elements [4, 79)")));
}

TEST_F(MuonTest, OptionsOutOfRangeAreNamedWithTheirGroup) {
  const auto parameter = Make("w", {3, 5});
  const std::pair<MuonOptions, std::string> cases[] = {{{.lr = -1}, "lr is -1"},
                                                       {{.weight_decay = NAN}, "weight_decay is nan"},
                                                       {{.momentum = -0.5}, "momentum is -0.5"},
                                                       {{.ns_coefficients = {1, NAN, 1}}, "ns_coefficients is nan"},
                                                       {{.eps = -1}, "eps is -1"},
                                                       {{.ns_steps = 100}, "ns_steps is 100: expected at least 0"}};
  for (const auto& [options, message] : cases) {
    EXPECT_THAT(Muon({parameter.get()}, options).Step(*stream_),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Muon, param group 0: " + message)));
  }
  Muon optimizer({parameter.get()}, {});
  for (const double value : {-1.0, 0.5, 1e300}) {
    EXPECT_THAT(optimizer.SetHyperparameter("ns_steps", value),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected a whole number from 0 to 99")));
    EXPECT_THAT(optimizer.SetHyperparameter("adjust_lr_fn", value),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected a whole number from 0 to 2")));
  }
}

}  // namespace
}  // namespace fsdp
