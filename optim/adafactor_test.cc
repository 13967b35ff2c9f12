// SPDX-License-Identifier: Apache-2.0
//
// Adafactor's parameters, states and extras; torch_optimizers_test.cc compares its steps with PyTorch's, and
// fsdp/every_optimizer_test.cc trains sharded parameters.
#include "fsdp/optim/adafactor.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using AdafactorTest = OptimizerFixture;

TEST_F(AdafactorTest, AMatrixHasARowAndAColumnAndAVectorItsVariance) {
  const auto matrix = Make("matrix", {5, 7}), batch = Make("batch", {2, 3, 5}), vector = Make("vector", {23}),
             scalar = Make("scalar", Shape());
  Adafactor optimizer({matrix.get(), batch.get(), vector.get(), scalar.get()}, {});
  ASSERT_OK(optimizer.Step(*stream_));
  EXPECT_THAT(optimizer.StateNamesOf(0), ElementsAre("row_var", "col_var"));
  EXPECT_EQ(optimizer.State(0, "row_var")->numel(), 5);
  EXPECT_EQ(optimizer.State(0, "col_var")->numel(), 7);
  EXPECT_EQ(optimizer.State(1, "row_var")->numel(), 2 * 3);
  EXPECT_EQ(optimizer.State(1, "col_var")->numel(), 2 * 5);
  EXPECT_THAT(optimizer.StateNamesOf(2), ElementsAre("variance"));
  EXPECT_EQ(optimizer.State(2, "variance")->numel(), 23);
  EXPECT_THAT(optimizer.StateNamesOf(3), ElementsAre("variance"));
}

TEST_F(AdafactorTest, FactorsHaveTheShapesOfPyTorch) {
  EXPECT_EQ(FactorShape("row_var", {2, 3, 5}), Shape({2, 3, 1}));
  EXPECT_EQ(FactorShape("col_var", {2, 3, 5}), Shape({2, 1, 5}));
  EXPECT_EQ(FactorShape("variance", {3, 5}), std::nullopt);
  EXPECT_EQ(FactorShape("row_var", {5}), std::nullopt);
}

TEST_F(AdafactorTest, AFactorHasTheBitsOfScalingBeforeAndFoundInfSkips) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto folded = Make("a", {5, 7}, dtype), scaled = Make("b", {5, 7}, dtype);
    Adafactor with({folded.get()}, {}), without({scaled.get()}, {});
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

TEST_F(AdafactorTest, ASliceWithoutAnExchangeAndAPartOfALargerTensorAreNamed) {
  const auto slice = MakeParameter(*device_, "w", 75, 0);
  EXPECT_THAT(
      Adafactor({slice.get()}, {}).Step(*stream_),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("Adafactor: this rank has the elements [4, 79) of parameter \"w\" [84], expected all")));
  const auto part = Make("p", {5, 7});
  part->part = ParameterPart{.whole = {10, 7}};
  EXPECT_THAT(Adafactor({part.get()}, {}).Step(*stream_),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("parameter \"p\" is a part of a larger tensor, [10, 7], of which other ranks have")));
}

TEST_F(AdafactorTest, OptionsOutOfRangeAreNamedWithTheirGroup) {
  const auto parameter = Make("w", {5});
  const std::pair<AdafactorOptions, std::string> cases[] = {
      {{.lr = -1}, "lr is -1"},
      {{.beta2_decay = 0.1}, "beta2_decay is 0.1: expected a finite number of at most"},
      {{.eps1 = -1}, "eps1 is -1"},
      {{.eps2 = NAN}, "eps2 is nan"},
      {{.d = 0.5}, "d is 0.5: expected a finite number of at least 1"},
      {{.weight_decay = -1}, "weight_decay is -1"}};
  for (const auto& [options, message] : cases) {
    EXPECT_THAT(Adafactor({parameter.get()}, options).Step(*stream_),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Adafactor, param group 0: " + message)));
  }
}

TEST_F(AdafactorTest, Eps1IsPyTorchsNoneUnlessItIsSet) {
  const auto parameter = Make("w", {5});
  Adafactor optimizer({parameter.get()}, {});
  EXPECT_TRUE(std::isnan(optimizer.ParamGroups()[0].values[2].second));
  EXPECT_OK(optimizer.SetHyperparameter("eps1", 0.25));
  EXPECT_THAT(optimizer.ParamGroups()[0].values, Contains(Pair("eps1", 0.25)));
  EXPECT_OK(optimizer.SetHyperparameter("eps1", NAN));
  EXPECT_TRUE(std::isnan(optimizer.ParamGroups()[0].values[2].second));
  EXPECT_THAT(optimizer.SetHyperparameter("momentum", 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it has lr, beta2_decay, eps1, eps2, d")));
}

}  // namespace
}  // namespace fsdp
