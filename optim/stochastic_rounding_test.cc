// SPDX-License-Identifier: Apache-2.0
//
// Rounding to bfloat16 at random: which numbers it gives and how often, that they depend on seed, name, step and
// element alone, and that optimizers use it for parameters and states.
#include "fsdp/optim/stochastic_rounding.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adafactor.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/convert_elements.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

constexpr DType kBits = DType::kBFloat16;

TEST(StochasticRoundingTest, RoundsUpAsOftenAsTheNumberIsNearerToTheUpperNeighbour) {
  // 1 + 2^-7 is the next bfloat16 after 1, and each number is one in 2^16 between them.
  for (const int part : {0, 1, 77, 1 << 15, (1 << 16) - 1}) {
    for (const float sign : {1.0f, -1.0f}) {
      const float value = sign * (1.0f + static_cast<float>(part) * 0x1p-23f);
      int away = 0;
      for (uint32_t number = 0; number < 1 << 16; ++number) {
        const float rounded = BFloat16ToFloat(RoundAtRandom(value, number << 16));
        ASSERT_TRUE(rounded == sign || rounded == sign * (1 + 0x1p-7f)) << rounded;
        away += rounded != sign;
      }
      EXPECT_EQ(away, part) << value;
    }
  }
}

TEST(StochasticRoundingTest, KeepsInfinitiesAndNaNs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const uint32_t number : {0u, ~0u}) {
    EXPECT_EQ(BFloat16ToFloat(RoundAtRandom(kInfinity, number)), kInfinity);
    EXPECT_EQ(BFloat16ToFloat(RoundAtRandom(-kInfinity, number)), -kInfinity);
    EXPECT_TRUE(std::isnan(BFloat16ToFloat(RoundAtRandom(NAN, number))));
  }
}

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(ShardedParameter*)>;

std::vector<std::pair<std::string, MakeOptimizer>> Kinds() {
  return {{"AdamW",
           [](ShardedParameter* p) {
             return std::make_unique<AdamW>(std::vector{p}, AdamWOptions{.lr = 1e-3, .amsgrad = true});
           }},
          {"SGD",
           [](ShardedParameter* p) {
             return std::make_unique<Sgd>(std::vector{p}, SgdOptions{.lr = 1e-3, .momentum = 0.9});
           }},
          {"Lion", [](ShardedParameter* p) { return std::make_unique<Lion>(std::vector{p}, LionOptions{.lr = 1e-3}); }},
          {"Adafactor",
           [](ShardedParameter* p) { return std::make_unique<Adafactor>(std::vector{p}, AdafactorOptions{}); }},
          {"Muon", [](ShardedParameter* p) { return std::make_unique<Muon>(std::vector{p}, MuonOptions{}); }}};
}

class StochasticOptimizerTest : public OptimizerFixture {
 protected:
  std::unique_ptr<ShardedParameter> Matrix(DType dtype = kBits) {
    auto parameter = MakeParameterOf(*device_, "w", 40 * 60, 3, dtype, dtype);
    parameter->shape = {40, 60};
    parameter->interval = {0, 40 * 60};
    SetFloats(parameter->data, Random(40 * 60, 1));
    return parameter;
  }

  void Step(Optimizer& optimizer, const ShardedParameter& parameter, int step) {
    const Floats whole = Random(40 * 60, 10 + step);
    const auto begin = whole.begin() + parameter.interval.begin;
    SetGrad(parameter, Floats(begin, begin + parameter.interval.size()));
    ASSERT_OK(optimizer.Step(*stream_));
    ASSERT_OK(stream_->Synchronize());
  }

  // Parameter and states after three steps, one after the other.
  Floats Train(const MakeOptimizer& make, std::optional<uint64_t> seed, DType dtype = kBits) {
    const auto parameter = Matrix(dtype);
    const std::unique_ptr<Optimizer> optimizer = make(parameter.get());
    EXPECT_OK(optimizer->set_bf16_stochastic_round(seed));
    for (int step = 0; step < 3; ++step) Step(*optimizer, *parameter, step);
    Floats all = GetFloats(parameter->data);
    for (const std::string& name : optimizer->StateNamesOf(0)) {
      const Floats state = GetFloats(*optimizer->State(0, name));
      all.insert(all.end(), state.begin(), state.end());
    }
    return all;
  }
};

TEST_F(StochasticOptimizerTest, EveryOptimizerRoundsParameterAndStatesByTheSeedAlone) {
  for (const auto& [name, make] : Kinds()) {
    SCOPED_TRACE(name);
    const Floats nearest = Train(make, std::nullopt), first = Train(make, 1);
    EXPECT_EQ(Train(make, 1), first);
    EXPECT_NE(Train(make, 2), first);
    ASSERT_EQ(first.size(), nearest.size());
    // Each tensor has numbers that are rounded the other way.
    const auto differ = [&](size_t begin, size_t end) {
      size_t count = 0;
      for (size_t i = begin; i < end; ++i) count += first[i] != nearest[i];
      return count;
    };
    EXPECT_GT(differ(0, 2400), 100u) << "the parameter";
    EXPECT_GT(differ(2400, first.size()), (first.size() - 2400) / 50) << "the states";
  }
}

TEST_F(StochasticOptimizerTest, OtherDTypesAreRoundedToTheNearest) {
  for (const auto& [name, make] : Kinds()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      EXPECT_EQ(Train(make, 1, dtype), Train(make, std::nullopt, dtype)) << name;
    }
  }
}

TEST_F(StochasticOptimizerTest, SlicesOfAnySizeHaveTheBitsOfTheWhole) {
  const std::vector<std::pair<std::string, MakeOptimizer>> kinds = Kinds();
  for (size_t k = 0; k < 3; ++k) {  // those that update each element by itself
    SCOPED_TRACE(kinds[k].first);
    const Floats whole = Train(kinds[k].second, 7);
    for (const Interval& interval : {Interval{0, 5}, Interval{5, 1500}, Interval{1500, 2400}}) {
      const auto parameter = Matrix();
      parameter->data = parameter->data.Slice(interval);
      parameter->grad = parameter->grad.Slice(interval);
      parameter->interval = interval;
      const std::unique_ptr<Optimizer> optimizer = kinds[k].second(parameter.get());
      ASSERT_OK(optimizer->set_bf16_stochastic_round(7));
      for (int step = 0; step < 3; ++step) Step(*optimizer, *parameter, step);
      EXPECT_EQ(GetFloats(parameter->data), Floats(whole.begin() + interval.begin, whole.begin() + interval.end));
    }
  }
}

TEST_F(StochasticOptimizerTest, KernelsRoundByTheNumbersOfTheElements) {
  ForEachInstructionSet([&] {
    const auto parameter = Matrix();
    const Floats before = GetFloats(parameter->data);
    Sgd sgd({parameter.get()}, {.lr = 1e-3});
    ASSERT_OK(sgd.set_bf16_stochastic_round(3));
    Step(sgd, *parameter, 0);
    const Floats gradient = GradOf(*parameter), after = GetFloats(parameter->data);
    std::vector<uint32_t> numbers(before.size());
    StochasticRounding(3, *parameter, /*step=*/1).Fill(0, 0, absl::MakeSpan(numbers));
    for (size_t i = 0; i < before.size(); ++i) {
      const float product = -1e-3f * gradient[i];
      EXPECT_EQ(after[i], BFloat16ToFloat(RoundAtRandom(before[i] + product, numbers[i]))) << i;
    }
  });
}

// A step of 2^-12 is an eighth of what to the nearest would move a parameter of 1.
TEST_F(StochasticOptimizerTest, StepsThatAreTooSmallForANumberMoveTheMean) {
  for (const bool at_random : {false, true}) {
    const auto parameter = Matrix();
    SetFloats(parameter->data, Floats(2400, 1.0f));
    Sgd sgd({parameter.get()}, {.lr = 0x1p-12});
    if (at_random) {
      ASSERT_OK(sgd.set_bf16_stochastic_round(0));
    }
    for (int step = 0; step < 64; ++step) {
      SetGrad(*parameter, Floats(2400, 1.0f));
      ASSERT_OK(sgd.Step(*stream_));
    }
    ASSERT_OK(stream_->Synchronize());
    const Floats values = GetFloats(parameter->data);
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / 2400;
    if (at_random) {
      EXPECT_NEAR(mean, 1 - 64 * 0x1p-12, 1e-3);
      // Each step has numbers of its own, so (15/16)^64 of the elements never moved.
      EXPECT_LT(std::count(values.begin(), values.end(), 1.0f), 100);
    } else {
      EXPECT_EQ(mean, 1);
    }
  }
}

TEST_F(StochasticOptimizerTest, IsAHyperparameterOfEveryGroup) {
  const auto parameter = Matrix();
  AdamW adamw({parameter.get()}, {});
  EXPECT_THAT(adamw.ParamGroups()[0].values, Not(Contains(Pair("bf16_stochastic_round", testing::_))));
  EXPECT_THAT(adamw.ParamGroups()[0].implied, Contains(Pair("bf16_stochastic_round", 0)));
  ASSERT_OK(adamw.SetHyperparameter("rounding_seed", 9));
  EXPECT_EQ(adamw.bf16_stochastic_round(), std::nullopt) << "the seed alone does not switch it on";
  ASSERT_OK(adamw.SetHyperparameter("bf16_stochastic_round", 1));
  ASSERT_OK(adamw.SetHyperparameter("rounding_seed", 9));
  EXPECT_EQ(adamw.bf16_stochastic_round(), 9u);
  EXPECT_THAT(adamw.ParamGroups()[0].values,
              AllOf(Contains(Pair("bf16_stochastic_round", 1)), Contains(Pair("rounding_seed", 9))));
  EXPECT_THAT(adamw.SetHyperparameter("bf16_stochastic_round", 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bf16_stochastic_round is 2: expected 0 or 1")));
  EXPECT_THAT(adamw.SetHyperparameter("rounding_seed", 0.5),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a whole number up to 2^53")));
  EXPECT_THAT(adamw.set_bf16_stochastic_round(~uint64_t{0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected at most 2^53")));
  ASSERT_OK(adamw.SetHyperparameter("bf16_stochastic_round", 0));
  EXPECT_EQ(adamw.bf16_stochastic_round(), std::nullopt);
}

}  // namespace
}  // namespace fsdp
