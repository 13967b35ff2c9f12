// SPDX-License-Identifier: Apache-2.0
//
// AdamW and SGD against steps that the real PyTorch took (testdata/make_torch_steps.py). The bits differ, and neither
// side's are better: PyTorch's CPU kernels fuse multiplications with additions if the machine can, ours never do, and
// AdamW's weight decay is rounded elsewhere (update_kernels.h). So each number may be as far from PyTorch's as both
// sides' roundings of the terms that it was computed from can carry it.
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/optimizer_testutil.h"
#include "fsdp/optim/sgd.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using nlohmann::json;
using Doubles = std::vector<double>;

// The largest relative error of one rounding to float32.
constexpr double kRounding = 0x1p-24;

json TorchCases() {
  std::ifstream file("optim/testdata/torch_steps.json");
  return json::parse(file, nullptr, /*allow_exceptions=*/false)["cases"];
}

Floats FloatsOf(const json& numbers) { return numbers.get<Floats>(); }

// The allowed distance of each element from PyTorch's; grows with each step.
struct Distances {
  Doubles parameter, first, second;

  explicit Distances(size_t numel) : parameter(numel), first(numel), second(numel) {}
};

void ExpectWithin(const Tensor& ours, const json& torch, const Doubles& distance, const std::string& what) {
  const Floats actual = Get(ours);
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LE(std::abs(actual[i] - torch[i].get<double>()), distance[i]) << what << " of element " << i;
  }
}

// m has 3 roundings on each side, of terms of at most |m| + |g|; v has 4 on each side. In p each side rounds p itself
// up to three times, and p's change by 8, and p inherits the errors of m and v.
void Widen(const json& before, const json& step, int t, const AdamWOptions& options, Distances& distances) {
  const double c1 = 1 - std::pow(options.beta1, t), c2 = 1 - std::pow(options.beta2, t);
  for (size_t i = 0; i < distances.parameter.size(); ++i) {
    const double g = step["gradient"][i], p = before["parameter"][i];
    const double m = step["exp_avg"][i], v = step["exp_avg_sq"][i];
    const double m_before = before.contains("exp_avg") ? before["exp_avg"][i].get<double>() : 0;
    distances.first[i] += 6 * kRounding * (std::abs(m_before) + std::abs(g));
    distances.second[i] += 8 * kRounding * v;
    const double denominator = std::sqrt(v / c2) + options.eps;
    const double change = options.lr / c1 * std::abs(m) / denominator;
    const double of_v = v == 0 ? 0 : distances.second[i] / (2 * v);
    distances.parameter[i] += kRounding * (6 * std::abs(p) + 16 * change) +
                              options.lr / c1 / denominator * distances.first[i] + change * of_v;
  }
}

// The gradient with its decay has 2 roundings a side, the buffer 3 of its terms and the gradient's, nesterov's sum 2,
// and p 2.
void Widen(const json& before, const json& step, const SgdOptions& options, Distances& distances) {
  for (size_t i = 0; i < distances.parameter.size(); ++i) {
    const double p = before["parameter"][i];
    const double g = std::abs(step["gradient"][i].get<double>()) + options.weight_decay * std::abs(p);
    double terms = g, of_gradient = 4 * kRounding * g + options.weight_decay * distances.parameter[i];
    if (options.momentum != 0) {
      const double b = before.contains("momentum_buffer") ? std::abs(before["momentum_buffer"][i].get<double>()) : 0;
      distances.first[i] += of_gradient + 6 * kRounding * (b + g);
      terms += b;
      of_gradient += distances.first[i] + 4 * kRounding * terms;
    }
    distances.parameter[i] += options.lr * of_gradient + 4 * kRounding * (std::abs(p) + options.lr * terms);
  }
}

class TorchStepsTest : public OptimizerFixture {
 protected:
  std::unique_ptr<ShardedParameter> ParameterOf(const json& c) {
    auto parameter = MakeParameter(*device_, "w", static_cast<int64_t>(c["before"].size()), 0);
    Set(parameter->data, FloatsOf(c["before"]));
    return parameter;
  }

  void Step(Optimizer& optimizer, const json& step, ShardedParameter& parameter) {
    SetGrad(parameter, FloatsOf(step["gradient"]));
    ASSERT_OK(optimizer.Step(*stream_));
    ASSERT_OK(stream_->Synchronize());
  }
};

TEST_F(TorchStepsTest, AdamWStaysWithinBothSidesRoundings) {
  int compared = 0;
  for (const json& c : TorchCases()) {
    if (c["optimizer"] != "AdamW") continue;
    const json& o = c["options"];
    SCOPED_TRACE(o.dump());
    const AdamWOptions options{.lr = o["lr"],
                               .beta1 = o["betas"][0],
                               .beta2 = o["betas"][1],
                               .eps = o["eps"],
                               .weight_decay = o["weight_decay"]};
    const auto parameter = ParameterOf(c);
    AdamW optimizer({parameter.get()}, options);
    Distances distances(c["before"].size());
    json before = {{"parameter", c["before"]}};
    int t = 0;
    for (const json& step : c["steps"]) {
      Step(optimizer, step, *parameter);
      Widen(before, step, ++t, options, distances);
      ExpectWithin(parameter->data, step["parameter"], distances.parameter, "parameter");
      ExpectWithin(*optimizer.State(0, "exp_avg"), step["exp_avg"], distances.first, "exp_avg");
      ExpectWithin(*optimizer.State(0, "exp_avg_sq"), step["exp_avg_sq"], distances.second, "exp_avg_sq");
      before = step;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3 * 6);
}

TEST_F(TorchStepsTest, SgdStaysWithinBothSidesRoundings) {
  int compared = 0;
  for (const json& c : TorchCases()) {
    if (c["optimizer"] != "SGD") continue;
    const json& o = c["options"];
    SCOPED_TRACE(o.dump());
    const SgdOptions options{.lr = o["lr"],
                             .momentum = o["momentum"],
                             .dampening = o["dampening"],
                             .weight_decay = o["weight_decay"],
                             .nesterov = o["nesterov"]};
    const auto parameter = ParameterOf(c);
    Sgd optimizer({parameter.get()}, options);
    Distances distances(c["before"].size());
    json before = {{"parameter", c["before"]}};
    for (const json& step : c["steps"]) {
      Step(optimizer, step, *parameter);
      Widen(before, step, options, distances);
      ExpectWithin(parameter->data, step["parameter"], distances.parameter, "parameter");
      if (options.momentum != 0) {
        ExpectWithin(*optimizer.State(0, "momentum_buffer"), step["momentum_buffer"], distances.first, "buffer");
      }
      before = step;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3 * 6);
}

}  // namespace
}  // namespace fsdp
