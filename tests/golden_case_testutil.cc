// SPDX-License-Identifier: Apache-2.0
//
// Trains a golden case again in float64 with the flags that train_gpt gets. The global batch of step s is rows s * rows
// to (s + 1) * rows of the tokens, however it was divided among ranks and micro-steps, and the learning rate is the one
// that PyTorch recorded.
#include "fsdp/tests/golden_case_testutil.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/check.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/models/gpt2_config.h"
#include "fsdp/train/token_data.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

Gpt2Config ReadConfig(const std::string& path) {
  std::ifstream stream(path);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  return ParseGpt2Config(text, nullptr).value();
}

// All tensors of the golden models are float32, so the bytes are the values.
std::map<std::string, std::vector<float>> ReadWeights(const std::string& path) {
  const std::unique_ptr<TensorSource> source = OpenTensorSource(path).value();
  std::map<std::string, std::vector<float>> weights;
  for (const auto& [key, value] : source->contents().entries()) {
    const int64_t numel = std::get<ShardedTensor>(value).shape.numel();
    weights[key.fqn].resize(numel);
    EXPECT_TRUE(source->Read(key, {0, numel}, weights[key.fqn].data()).ok());
  }
  return weights;
}

// JSON writes a number that is not finite as null; it is read as NaN.
std::vector<double> ReadNumbers(const nlohmann::json& list) {
  std::vector<double> numbers;
  for (const nlohmann::json& value : list) numbers.push_back(value.is_null() ? NAN : value.get<double>());
  return numbers;
}

// "--lr" of "--lr=0.001".
std::string NameOf(const std::string& flag) { return flag.substr(0, flag.find('=')); }

// 0 for two numbers that are both not finite: a step whose gradients overflowed has no norm in either run.
// A zero in the golden run would give a quotient that is not finite: count it as infinitely far.
double Relative(double ours, double golden) {
  if (!std::isfinite(ours) && !std::isfinite(golden)) return 0;
  const double relative = std::abs(ours - golden) / golden;
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

}  // namespace

// Flags are the only source of a case's hyperparameters: train_gpt and the float64 run both parse them.
double GoldenCase::Flag(const std::string& name, double absent) const {
  const std::string prefix = "--" + name + "=";
  for (const std::string& flag : flags) {
    if (absl::StartsWith(flag, prefix)) return std::atof(flag.c_str() + prefix.size());
  }
  return absent;
}

GoldenCase ReadGoldenCase(const std::string& name) {
  std::ifstream stream(Golden("losses/" + name + ".json"));
  const nlohmann::json json = nlohmann::json::parse(stream);
  return {.name = name,
          .model = json["model"],
          .flags = json["flags"],
          .comm_hook = json.value("comm_hook", ""),
          .loss = json["loss"],
          .grad_norm = ReadNumbers(json["grad_norm"]),
          .lr = json["lr"],
          .scale = json.value("scale", std::vector<double>())};
}

Flags TrainingFlags(const GoldenCase& golden, const Flags& instead) {
  Flags flags = {"--config=" + Golden(golden.model + "/config.json"),
                 "--init_from=" + Golden(golden.model),
                 "--tokens=" + Golden("tokens.u16"),
                 "--model=" + golden.model.substr(0, golden.model.find('_')),
                 "--device=cpu",
                 "--resume=none"};
  // train_gpt accepts a flag only once, so `instead` replaces the case's.
  for (const std::string& flag : golden.flags) {
    const auto same = [&](const std::string& other) { return NameOf(other) == NameOf(flag); };
    if (std::none_of(instead.begin(), instead.end(), same)) flags.push_back(flag);
  }
  return flags + instead;
}

// The flags are global, so each gets its value back. absl::FlagSaver would print a line for each.
TrainOptions OptionsOf(const Flags& flags) {
  std::map<absl::CommandLineFlag*, std::string> before;
  const auto set = [](absl::CommandLineFlag* flag, const std::string& value) {
    std::string error;
    Check(flag != nullptr && flag->ParseFrom(value, &error), "golden cases have flags of train_gpt");
  };
  for (const std::string& text : flags) {
    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(NameOf(text).substr(2));
    if (flag != nullptr) before.emplace(flag, flag->CurrentValue());
    set(flag, text.find('=') == std::string::npos ? "true" : text.substr(text.find('=') + 1));
  }
  TrainOptions options = TrainOptionsFromFlags().value();
  for (const auto& [flag, value] : before) set(flag, value);
  return options;
}

bool Distance::IsWithin(const Distance& tolerance) const {
  return scale <= tolerance.scale && loss <= tolerance.loss && grad_norm <= tolerance.grad_norm &&
         median_grad_norm <= tolerance.median_grad_norm && lr <= tolerance.lr;
}

std::string Distance::ToString() const {
  return absl::StrFormat("loss within %.1e, grad_norm within %.1e, its median %.1e, scale within %g", loss, grad_norm,
                         median_grad_norm, scale);
}

Distance DistanceTo(const GoldenCase& golden, const std::vector<StepMetrics>& steps) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (steps.size() != golden.loss.size()) return {kInfinite, kInfinite, kInfinite, kInfinite, kInfinite};
  Distance distance;
  std::vector<double> grad_norms;
  for (size_t s = 0; s < steps.size(); ++s) {
    grad_norms.push_back(Relative(steps[s].grad_norm, golden.grad_norm[s]));
    distance.loss = std::max(distance.loss, Relative(steps[s].loss, golden.loss[s]));
    distance.grad_norm = std::max(distance.grad_norm, grad_norms.back());
    distance.lr = std::max(distance.lr, Relative(steps[s].lr, golden.lr[s]));
    const double golden_scale = golden.scale.empty() ? NAN : golden.scale[s];
    distance.scale = std::max(distance.scale, Relative(steps[s].scale.value_or(NAN), golden_scale));
  }
  std::sort(grad_norms.begin(), grad_norms.end());
  distance.median_grad_norm = grad_norms[grad_norms.size() / 2];
  return distance;
}

std::vector<Float64Outcome> TrainInFloat64(const GoldenCase& golden, int seed) {
  const Gpt2Config config = ReadConfig(Golden(golden.model + "/config.json"));
  const TokenData data = TokenData::FromTokenFile(Golden("tokens.u16")).value();
  Gpt2Float64 model(config, ReadWeights(Golden(golden.model + "/model.safetensors")));
  const auto seq_len = static_cast<int64_t>(golden.Flag("seq_len", 0));
  const auto rows = static_cast<int64_t>(golden.Flag("nproc", 0) * golden.Flag("batch_size", 0) *
                                         golden.Flag("grad_accum", 0));  // the global batch
  std::minstd_rand random(seed);
  std::vector<Float64Outcome> outcomes;
  for (size_t s = 0; s < golden.lr.size(); ++s) {
    std::vector<int32_t> tokens(rows * seq_len), targets(rows * seq_len);
    for (int64_t row = 0; row < rows; ++row) {
      data.CopySample(static_cast<int64_t>(s) * rows + row, absl::MakeSpan(tokens).subspan(row * seq_len, seq_len),
                      absl::MakeSpan(targets).subspan(row * seq_len, seq_len));
    }
    outcomes.push_back(model.Step(tokens, targets, rows,
                                  {.lr = golden.lr[s],
                                   .weight_decay = golden.Flag("weight_decay", 0),
                                   .beta1 = golden.Flag("beta1", 0),
                                   .beta2 = golden.Flag("beta2", 0),
                                   .eps = golden.Flag("eps", 0),
                                   .max_grad_norm = golden.Flag("max_grad_norm", 0)}));
    // After the step, not within it: weights are stored in float32 between steps, and this is that rounding.
    if (seed > 0) model.Round(random);
  }
  return outcomes;
}

}  // namespace fsdp
