// SPDX-License-Identifier: Apache-2.0
//
// A golden case is trained again in float64 with the flags that train_gpt gets: the global batch of step s is rows
// s * rows to (s + 1) * rows of the tokens, whatever ranks and micro-steps it was divided among, and the learning rate
// is the one that PyTorch recorded.
#include "fsdp/tests/golden_case.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/match.h"
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

}  // namespace

// Flags are the single source of a case's hyperparameters: train_gpt parses them, and so does the float64 run.
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
          .loss = json["loss"],
          .grad_norm = json["grad_norm"],
          .lr = json["lr"]};
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
    // After the step and not within it: weights are stored in float32 between steps, and this is that rounding.
    if (seed > 0) model.Round(random);
  }
  return outcomes;
}

}  // namespace fsdp
