// SPDX-License-Identifier: Apache-2.0
//
// Parameters and states of bfloat16 and float16 against steps that the real PyTorch took with them
// (testdata/make_torch_low_precision.py). Every step starts from PyTorch's numbers before it, so that a difference is
// of that step. If PyTorch too computes in float32 and rounds once, only a sum that is a tie but for its last bit
// may round the other way; if it rounds every operation, results differ by some units of the last place.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adafactor.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/shape.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

// The distance between neighbours of `dtype` near `value`.
double UnitOf(DType dtype, double value) {
  const int bits = dtype == DType::kBFloat16 ? 7 : 10, least = dtype == DType::kBFloat16 ? -126 : -14;
  const int exponent = value == 0 ? least : std::max(least, std::ilogb(value));
  return std::ldexp(1.0, exponent - bits);
}

// How far results may be from PyTorch's.
struct Allowed {
  double units = 1;      // of the last place
  double others = 0.01;  // the share of numbers that may differ at all
  double of_step = 0;    // of the learning rate, in addition, for parameters
};

class LowPrecisionStepsTest : public OptimizerFixture {
 protected:
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const json& options, ShardedParameter* parameter)>;

  void ExpectStepsOf(const std::string& optimizer, const MakeOptimizer& make, const Allowed& allowed = {}) {
    std::ifstream file("optim/testdata/torch_low_precision.json");
    const json all = json::parse(file, nullptr, /*allow_exceptions=*/false);
    std::map<DType, int> compared;
    for (const json& c : all["cases"]) {
      if (c["optimizer"] != optimizer) continue;
      SCOPED_TRACE(c["dtype"].dump() + c["shape"].dump() + c["options"].dump());
      const DType dtype = *ParseDType(c["dtype"].get<std::string>());
      TakeSteps(c, dtype, make, allowed);
      ++compared[dtype];
    }
    EXPECT_EQ(compared.size(), 2u) << "bfloat16 and float16";
  }

 private:
  void TakeSteps(const json& c, DType dtype, const MakeOptimizer& make, const Allowed& allowed) {
    const auto parameter = MakeParameterOf(*device_, "w", c["before"].size(), 3, dtype, dtype);
    parameter->shape = *Shape::Create(c["shape"].get<std::vector<int64_t>>());
    parameter->interval = {0, parameter->shape.numel()};
    const std::unique_ptr<Optimizer> ours = make(c["options"], parameter.get());
    json before = {{"parameter", c["before"]}};
    different_ = total_ = 0;
    for (const json& step : c["steps"]) {
      SetFloats(parameter->data, before["parameter"].get<Floats>());
      SetGrad(*parameter, step["gradient"].get<Floats>());
      for (const std::string& name : ours->StateNamesOf(0)) {
        if (before.contains(name)) SetFloats(*ours->State(0, name), before[name].get<Floats>());
      }
      ASSERT_OK(ours->Step(*stream_));
      ASSERT_OK(stream_->Synchronize());
      Compare(parameter->data, step["parameter"], allowed, c["options"]["lr"].get<double>() * allowed.of_step);
      for (const std::string& name : ours->StateNamesOf(0)) {
        SCOPED_TRACE(name);
        Compare(*ours->State(0, name), step[name], allowed, 0);
      }
      EXPECT_EQ(ours->StateNamesOf(0).size() + 2, step.size()) << "a state is missing";
      before = step;
    }
    EXPECT_LE(different_, allowed.others * total_);
  }

  void Compare(const Tensor& ours, const json& torch, const Allowed& allowed, double more) {
    const Floats actual = GetFloats(ours);
    ASSERT_EQ(actual.size(), torch.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      const double expected = torch[i];
      EXPECT_LE(std::abs(actual[i] - expected), allowed.units * UnitOf(ours.dtype(), expected) + more)
          << "element " << i << ": " << actual[i] << " and " << expected;
      different_ += actual[i] != expected;
      ++total_;
    }
  }

  double different_ = 0, total_ = 0;  // numbers of one case
};

std::unique_ptr<Optimizer> MakeAdam(const json& o, ShardedParameter* parameter, bool decoupled) {
  return std::make_unique<AdamW>(std::vector{parameter}, AdamWOptions{.lr = o["lr"],
                                                                      .beta1 = o["betas"][0],
                                                                      .beta2 = o["betas"][1],
                                                                      .eps = o["eps"],
                                                                      .weight_decay = o["weight_decay"],
                                                                      .amsgrad = o["amsgrad"],
                                                                      .decoupled_weight_decay = decoupled});
}

TEST_F(LowPrecisionStepsTest, AdamWTakesTheStepsOfTorchsFusedOne) {
  ExpectStepsOf("AdamW", [](const json& o, ShardedParameter* parameter) { return MakeAdam(o, parameter, true); });
}

TEST_F(LowPrecisionStepsTest, AdamTakesTheStepsOfTorchsFusedOne) {
  ExpectStepsOf("Adam", [](const json& o, ShardedParameter* parameter) { return MakeAdam(o, parameter, false); });
}

TEST_F(LowPrecisionStepsTest, SgdTakesTheStepsOfTorchsFusedOne) {
  ExpectStepsOf("SGD", [](const json& o, ShardedParameter* parameter) {
    return std::make_unique<Sgd>(std::vector{parameter}, SgdOptions{.lr = o["lr"],
                                                                    .momentum = o["momentum"],
                                                                    .dampening = o["dampening"],
                                                                    .weight_decay = o["weight_decay"],
                                                                    .nesterov = o["nesterov"]});
  });
}

TEST_F(LowPrecisionStepsTest, LionTakesTheStepsOfItsFormulaInTorch) {
  ExpectStepsOf("Lion", [](const json& o, ShardedParameter* parameter) {
    return std::make_unique<Lion>(
        std::vector{parameter},
        LionOptions{.lr = o["lr"], .beta1 = o["betas"][0], .beta2 = o["betas"][1], .weight_decay = o["weight_decay"]});
  });
}

// Norms, products and roots of rounded factors each round in PyTorch.
TEST_F(LowPrecisionStepsTest, AdafactorTakesTorchsStepsButForItsRoundings) {
  const auto make = [](const json& o, ShardedParameter* parameter) {
    return std::make_unique<Adafactor>(
        std::vector{parameter},
        AdafactorOptions{.lr = o["lr"], .eps2 = o["eps"][1], .d = o["d"], .weight_decay = o["weight_decay"]});
  };
  ExpectStepsOf("Adafactor", make, {.units = 4, .others = 1, .of_step = 0x1p-5});
}

TEST_F(LowPrecisionStepsTest, MuonTakesTorchsStepsButForItsRoundings) {
  const auto make = [](const json& o, ShardedParameter* parameter) {
    return std::make_unique<Muon>(std::vector{parameter}, MuonOptions{.lr = o["lr"]});
  };
  ExpectStepsOf("Muon", make, {.units = 2, .others = 1, .of_step = 0x1p-3});
}

}  // namespace
}  // namespace fsdp
