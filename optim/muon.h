// SPDX-License-Identifier: Apache-2.0
//
// Muon: momentum whose matrix is orthogonalised, for the hidden matrices of a network; torch.optim.Muon's formula,
// options and names. For parameters of two dimensions on hosts; give others, and embeddings and heads, to an optimizer
// of their own such as AdamW. (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.)
#ifndef FSDP_OPTIM_MUON_H_
#define FSDP_OPTIM_MUON_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "fsdp/optim/optimizer.h"
#include "fsdp/optim/shard_exchange.h"

namespace fsdp {

class NewtonSchulz;

// How a matrix of A rows and B columns changes the learning rate, by PyTorch's names.
enum class AdjustLr : uint8_t {
  kOriginal,           // sqrt(max(1, A / B))
  kMatchRmsAdamw,      // 0.2 sqrt(max(A, B)): AdamW's rate and decay suit (Liu et al., 2025)
  kSpectralUnclamped,  // sqrt(A / B)
};

// PyTorch's names and defaults.
struct MuonOptions {
  double lr = 1e-3;

  // The share of p, times lr, that a step takes away. 0: none.
  double weight_decay = 0.1;

  // The share of the old momentum in the new one.
  double momentum = 0.95;
  bool nesterov = true;

  // The polynomial of the Newton-Schulz iteration, its steps, fewer than 100, and the least norm that it divides by.
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int ns_steps = 5;

  AdjustLr adjust_lr_fn = AdjustLr::kOriginal;
};

// kInvalidArgument, naming the field, for a value that is out of range, as in torch.optim.Muon, or not finite.
absl::Status Validate(const MuonOptions& options);

// With g the gradient of a matrix p, and b its momentum:
//   b = lerp(b, g, 1 - momentum);  u = nesterov ? lerp(g, b, momentum) : b
//   p = p - lr weight_decay p - AdjustLr(lr) NewtonSchulz(u)
// State: "momentum_buffer" (b). A sharded u is gathered, one matrix at a time, and every rank orthogonalises all of it
// and updates its slice: nothing has to be sent back and no rank waits for the one that owns a matrix, for one
// unsharded matrix of memory, and work that does not become less with more ranks. n ranks train as one but for
// rounding, and with equal processors and threads in the same bits.
class Muon final : public Optimizer {
 public:
  // Parameters with their own options.
  struct Group {
    std::vector<ShardedParameter*> parameters;
    MuonOptions options;
  };

  // The caller owns `parameters`, which outlive the optimizer. `exchange` is for sharded ones (MakeShardExchange); null
  // if this rank has all parameters whole.
  Muon(std::vector<ShardedParameter*> parameters, const MuonOptions& options,
       std::shared_ptr<ShardExchange> exchange = nullptr);
  explicit Muon(std::vector<Group> groups, std::shared_ptr<ShardExchange> exchange = nullptr);
  ~Muon() override;

  // Adds a group of parameters, which have no state yet: PyTorch's add_param_group. Every rank adds the same.
  // kInvalidArgument for options that Validate refuses and for a parameter that is in two groups, naming it. An error
  // adds nothing. Blocks.
  absl::Status AddParamGroup(Group group);

  // Waits for `stream` and computes on the calling thread. kInvalidArgument, naming the group, for options that
  // Validate refuses, and, naming the parameter, for one that is no matrix; kUnimplemented for one on a device or of
  // tensor parallelism; kFailedPrecondition for a slice without an exchange. Nothing is changed then. Collective with
  // an exchange.
  absl::Status Step(Stream& stream) override;
  bool needs_step() const override { return false; }

 private:
  std::vector<ParamGroupState> FormulaGroups() const override;
  absl::Status CheckFormula(size_t group, std::string_view name, double value) const override;
  void AssignFormula(size_t group, std::string_view name, double value) override;
  absl::Status CheckParameter(const ShardedParameter& parameter) const;
  absl::Status Update(size_t index);

  std::vector<Group> groups_;
  std::shared_ptr<ShardExchange> exchange_;      // null: parameters are whole
  std::unique_ptr<NewtonSchulz> newton_schulz_;  // from the first step on
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_MUON_H_
