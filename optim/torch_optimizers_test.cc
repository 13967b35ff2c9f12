// SPDX-License-Identifier: Apache-2.0
//
// Optimizers against steps that the real PyTorch took (testdata/make_torch_optimizers.py): parameter and every state
// after each step, by PyTorch's names and shapes. Both sides round in other places, so a number may differ by some
// roundings of the terms that it was computed from.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adafactor.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/tensor/shape.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;

// The errors of tens of roundings to float32.
constexpr double kRoundings = 0x1p-19;

class TorchOptimizersTest : public OptimizerFixture {
 protected:
  using Make = std::function<std::unique_ptr<Optimizer>(const json& options, ShardedParameter* parameter)>;

  // Takes the steps of every case of `optimizer` in the file of `family` with the optimizer that `make` makes, and
  // compares. `of_step` is the error that a parameter may have for each unit of the learning rate.
  void ExpectStepsOf(const std::string& family, const std::string& optimizer, const Make& make,
                     double of_step = kRoundings) {
    std::ifstream file(absl::StrCat("optim/testdata/torch_", family, ".json"));
    const json all = json::parse(file, nullptr, /*allow_exceptions=*/false);
    int compared = 0;
    for (const json& c : all["cases"]) {
      if (c["optimizer"] != optimizer) continue;
      SCOPED_TRACE(c["shape"].dump() + c["options"].dump());
      const auto parameter = ParameterOf(c);
      const std::unique_ptr<Optimizer> ours = make(c["options"], parameter.get());
      sizes_.assign(parameter->interval.size(), 0);
      for (const json& step : c["steps"]) {
        SetGrad(*parameter, step["gradient"].get<Floats>());
        ASSERT_OK(ours->Step(*stream_));
        ASSERT_OK(stream_->Synchronize());
        Compare(*ours, *parameter, step, c["options"], of_step);
        ++compared;
      }
    }
    EXPECT_GT(compared, 0);
  }

 private:
  std::unique_ptr<ShardedParameter> ParameterOf(const json& c) {
    auto parameter = MakeParameter(*device_, "w", static_cast<int64_t>(c["before"].size()), 3);
    parameter->shape = *Shape::Create(c["shape"].get<std::vector<int64_t>>());
    parameter->interval = {0, parameter->shape.numel()};
    Set(parameter->data, c["before"].get<Floats>());
    return parameter;
  }

  // States are compared with the sizes of the gradients that they are means of, parameters with the learning rate too.
  void Compare(Optimizer& ours, const ShardedParameter& parameter, const json& step, const json& options,
               double of_step) {
    const double decay = options.value("decoupled_weight_decay", true) ? 0 : options["weight_decay"].get<double>();
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const double g = std::abs(step["gradient"][i].get<double>());
      sizes_[i] = std::max(sizes_[i], g + decay * std::abs(step["parameter"][i].get<double>()));
    }
    const double step_error = options["lr"].get<double>() * of_step;
    ExpectNear(
        parameter.data, step["parameter"], [&](size_t) { return step_error; }, "parameter");
    for (const std::string& name : ours.StateNamesOf(0)) {
      ASSERT_TRUE(step.contains(name)) << name;
      const bool is_square = name.find("sq") != std::string::npos || name.find("var") != std::string::npos;
      const auto more = [&](size_t i) { return is_square ? 0 : kRoundings * sizes_[i]; };
      ExpectNear(*ours.State(0, name), step[name]["values"], more, name);
    }
    EXPECT_EQ(ours.StateNamesOf(0).size() + 2, step.size()) << "a state is missing";
  }

  // Each number may differ by kRoundings of itself, and by `more` of its index.
  static void ExpectNear(const Tensor& ours, const json& torch, const std::function<double(size_t)>& more,
                         const std::string& what) {
    const Floats actual = Get(ours);
    ASSERT_EQ(actual.size(), torch.size()) << what;
    for (size_t i = 0; i < actual.size(); ++i) {
      const double expected = torch[i];
      EXPECT_LE(std::abs(actual[i] - expected), kRoundings * std::abs(expected) + more(i))
          << what << " of element " << i << ": " << actual[i] << " and " << expected;
    }
  }

  std::vector<double> sizes_;  // by element: of the largest gradient so far, with the decay that is added to it
};

std::unique_ptr<Optimizer> MakeAdam(const json& o, ShardedParameter* parameter) {
  return std::make_unique<AdamW>(std::vector{parameter},
                                 AdamWOptions{.lr = o["lr"],
                                              .beta1 = o["betas"][0],
                                              .beta2 = o["betas"][1],
                                              .eps = o["eps"],
                                              .weight_decay = o["weight_decay"],
                                              .amsgrad = o["amsgrad"],
                                              .decoupled_weight_decay = o["decoupled_weight_decay"]});
}

TEST_F(TorchOptimizersTest, AdamWithAndWithoutAmsgradTakesTorchsSteps) { ExpectStepsOf("Adam", "Adam", MakeAdam); }

TEST_F(TorchOptimizersTest, AdamWWithAmsgradTakesTorchsSteps) { ExpectStepsOf("Adam", "AdamW", MakeAdam); }

TEST_F(TorchOptimizersTest, AdafactorTakesTorchsSteps) {
  ExpectStepsOf("Adafactor", "Adafactor", [](const json& o, ShardedParameter* parameter) {
    AdafactorOptions options = {.lr = o["lr"],
                                .beta2_decay = o["beta2_decay"],
                                .eps2 = o["eps"][1],
                                .d = o["d"],
                                .weight_decay = o["weight_decay"]};
    if (!o["eps"][0].is_null()) options.eps1 = o["eps"][0];
    return std::make_unique<Adafactor>(std::vector{parameter}, options);
  });
}

TEST_F(TorchOptimizersTest, LionTakesTheStepsOfItsFormulaInTorch) {
  ExpectStepsOf("Lion", "Lion", [](const json& o, ShardedParameter* parameter) {
    return std::make_unique<Lion>(
        std::vector{parameter},
        LionOptions{.lr = o["lr"], .beta1 = o["betas"][0], .beta2 = o["betas"][1], .weight_decay = o["weight_decay"]});
  });
}

// Newton-Schulz rounds every product to bfloat16, and which way depends on the order of its sum; a step has a size near
// that of the learning rate.
TEST_F(TorchOptimizersTest, MuonTakesTorchsSteps) {
  const auto make = [](const json& o, ShardedParameter* parameter) {
    const json& ns = o["ns_coefficients"];
    MuonOptions options = {.lr = o["lr"],
                           .weight_decay = o["weight_decay"],
                           .momentum = o["momentum"],
                           .nesterov = o["nesterov"],
                           .ns_coefficients = {ns[0], ns[1], ns[2]},
                           .eps = o["eps"],
                           .ns_steps = o["ns_steps"]};
    if (o["adjust_lr_fn"] == "match_rms_adamw") options.adjust_lr_fn = AdjustLr::kMatchRmsAdamw;
    return std::make_unique<Muon>(std::vector{parameter}, options);
  };
  ExpectStepsOf("Muon", "Muon", make, /*of_step=*/0x1p-4);
}

}  // namespace
}  // namespace fsdp
