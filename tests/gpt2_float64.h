// SPDX-License-Identifier: Apache-2.0
//
// Gpt2Float64: GPT-2 trained in float64 by plain loops, the reference when two float32 runs disagree. It shares no
// kernel, no layout and no optimizer with the product; gpt2_float64_test.cc compares it with PyTorch in float64.
#ifndef FSDP_TESTS_GPT2_FLOAT64_H_
#define FSDP_TESTS_GPT2_FLOAT64_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fsdp/models/gpt2_config.h"
#include "fsdp/nn/ops/reference_ops.h"

namespace fsdp {

// Hyperparameters of one step; the names of cli.md.
struct Float64Step {
  double lr = 0;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double max_grad_norm = 0;  // 0: no clipping
};

// The results of a step that golden cases record.
struct Float64Outcome {
  double loss = 0;
  double grad_norm = 0;  // before clipping
};

class Gpt2Float64 {
 public:
  // `weights` by Hugging Face's names. Precondition: they are the weights of a model of `config` with a tied head.
  Gpt2Float64(const Gpt2Config& config, const std::map<std::string, std::vector<float>>& weights);

  // Forward, backward, clipping and AdamW on `rows` rows of tokens, the global batch.
  Float64Outcome Step(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, int64_t rows,
                      const Float64Step& step);

  // Moves every weight by up to 2^-24 of itself, as rounding it to float32 would: two runs that compute in float32
  // differ by at least that much.
  void Round(std::minstd_rand& random);

 private:
  struct Parameter {
    Doubles value, grad, exp_avg, exp_avg_sq;
    bool is_matrix = false;
  };

  // The tensors that a block's forward keeps for its backward.
  struct BlockState {
    Doubles x, ln_1, qkv, attention, middle, ln_2, fc, activated;
  };

  Parameter& At(const std::string& name) { return parameters_.at(name); }
  std::string BlockName(int64_t layer) const;

  // Returns the mean loss over all tokens; adds the gradients of the parameters to theirs.
  double ForwardBackward(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, int64_t rows);
  Doubles BlockForward(int64_t layer, const Doubles& x, BlockState& state);
  Doubles BlockBackward(int64_t layer, const Doubles& grad_out, const BlockState& state);

  // The layers by the names of their parameters: `name` is a prefix such as "transformer.h.0.attn.c_attn". Backward
  // adds the gradients of the parameters to them and returns the input's gradient.
  Doubles Linear(const std::string& name, const Doubles& x);
  Doubles LinearBackward(const std::string& name, const Doubles& grad_out, const Doubles& x);
  Doubles Norm(const std::string& name, const Doubles& x);
  Doubles NormBackward(const std::string& name, const Doubles& grad_out, const Doubles& x);

  // q of a row of qkv times 1 / sqrt(head_dim), exactly.
  void ScaleQueries(Doubles& qkv) const;

  // The 2-norm of all gradients together.
  double GradNorm() const;
  // AdamW with every gradient multiplied by `grad_scale`.
  void Update(const Float64Step& step, double grad_scale);

  const Gpt2Config config_;
  AttentionShape shape_;
  std::map<std::string, Parameter> parameters_;
  int64_t steps_ = 0;  // done, for the bias corrections
};

}  // namespace fsdp

#endif  // FSDP_TESTS_GPT2_FLOAT64_H_
