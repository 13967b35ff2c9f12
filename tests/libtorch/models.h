// SPDX-License-Identifier: Apache-2.0
//
// The models of models.py as torch::nn modules: the same names, the same operators in the same order, and the same data
// of each step, so that losses can be compared with Python's.
#ifndef FSDP_TESTS_LIBTORCH_MODELS_H_
#define FSDP_TESTS_LIBTORCH_MODELS_H_

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

// Numbers that Python makes too: in [-0.5, 0.5), exactly representable; and integers in [0, below).
at::Tensor Uniform(int64_t seed, at::IntArrayRef shape);
at::Tensor Integers(int64_t seed, int64_t below, at::IntArrayRef shape);

struct Batch {
  at::Tensor x, y;

  // The rows of one rank: an equal share of them.
  Batch Of(int rank, int ranks) const;
};

class TestModel : public torch::nn::Module {
 public:
  using Module::Module;

  // The names of the children that are units.
  virtual std::vector<std::string> units() const = 0;

  // In mixed precision: the units in bfloat16, and those that keep float32.
  virtual std::vector<std::string> low_units() const { return units(); }
  virtual std::vector<std::string> full_units() const { return {}; }

  // The rows of all ranks in a step.
  virtual Batch BatchOf(int64_t step) const = 0;

  // Logits of the rows of `x`.
  virtual at::Tensor Output(int64_t step, const at::Tensor& x) = 0;

  static at::Tensor LossOf(const at::Tensor& logits, const at::Tensor& y) {
    return torch::nn::functional::cross_entropy(logits.reshape({-1, logits.size(-1)}), y.reshape(-1));
  }
  at::Tensor Loss(int64_t step, const Batch& batch) { return LossOf(Output(step, batch.x), batch.y); }
};

struct TransformerSize {
  int64_t vocab = 97, width = 32, heads = 4, blocks = 2, length = 12, rows = 8;
};

// Its token embedding is also the weight of its head, under both names. With `calls_units` its blocks are called by
// CallUnit, as in the other models.
std::shared_ptr<TestModel> MakeTransformer(const TransformerSize& size = {}, bool calls_units = true);

// "mlp", "transformer", "conv_net", "lstm" or "mixture"; aborts for another name.
std::shared_ptr<TestModel> MakeTestModel(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_TESTS_LIBTORCH_MODELS_H_
