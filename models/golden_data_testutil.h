// SPDX-License-Identifier: Apache-2.0
//
// For tests: results that PyTorch computed, read from models/testdata. Unexpected data ends the test program.
#ifndef FSDP_MODELS_GOLDEN_DATA_TESTUTIL_H_
#define FSDP_MODELS_GOLDEN_DATA_TESTUTIL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

// A training case: loss and gradient norm of each step.
struct GoldenLosses {
  // In nats per token.
  std::vector<double> loss;

  // The 2-norm over all parameters, before clipping.
  std::vector<double> grad_norm;
};

// The bytes of a file, whose path is relative to the directory that the test runs in.
std::string ReadTestFile(const std::string& path);

// The float32 tensors of a safetensors file, by name.
std::map<std::string, std::vector<float>> ReadWeights(const std::string& path);

// Tokens, stored as little-endian uint16.
std::vector<int32_t> ReadTokens(const std::string& path);

// A JSON object with the arrays "loss" and "grad_norm", one number for each step.
GoldenLosses ReadLosses(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_MODELS_GOLDEN_DATA_TESTUTIL_H_
