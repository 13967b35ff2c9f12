// SPDX-License-Identifier: Apache-2.0
//
// Models of LibTorch for tests.
#ifndef FSDP_LIBTORCH_MODELS_TESTUTIL_H_
#define FSDP_LIBTORCH_MODELS_TESTUTIL_H_

#include <torch/nn.h>
#include <torch/script.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

// One test model, with the calls that tests make.
struct TestModel {
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::jit::Module> script;
  std::function<at::Tensor(const at::Tensor& input)> forward;
  std::function<at::Tensor(int seed)> input;
  std::vector<std::string> unit_types;  // the classes that are units
  c10::Device device = at::kCPU;        // of parameters and inputs
  int64_t row_dimension = 0;            // of the input: rows do not see each other

  std::vector<at::Tensor> parameters() const;
};

// A model by name, with the same initial values at each call: "mlp", "tied_transformer", "transformer_encoder",
// "conv_net", "lstm", "mixture_of_experts", "odd_net" (branches, a unit that runs twice, one that never runs,
// parameters that are not used, a frozen one, a custom autograd Function), "script". The values, and the inputs,
// are the same on every device, and in another `dtype` the same values rounded. From any thread.
TestModel MakeTestModel(const std::string& name, c10::Device device = at::kCPU, at::ScalarType dtype = at::kFloat);
const std::vector<std::string>& TestModelNames();

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_MODELS_TESTUTIL_H_
