// SPDX-License-Identifier: Apache-2.0
//
// Adafactor: second moments of matrices as the product of a row and a column, so that the state is small, and steps
// relative to the size of the parameter; torch.optim.Adafactor's formula, options and names, which differ from the
// paper's as PyTorch's documentation says. For parameters on hosts. (Shazeer and Stern, "Adafactor: Adaptive Learning
// Rates with Sublinear Memory Cost", 2018.)
#ifndef FSDP_OPTIM_ADAFACTOR_H_
#define FSDP_OPTIM_ADAFACTOR_H_

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fsdp/optim/optimizer.h"
#include "fsdp/optim/shard_exchange.h"

namespace fsdp {

// PyTorch's names and defaults.
struct AdafactorOptions {
  // The largest relative step, and the factor of the decay.
  double lr = 1e-2;

  // The share of the new value in the running means is t^beta2_decay. At most 0.
  double beta2_decay = -0.8;

  // eps: the least variance, outside of its root; nullopt: the parameter's dtype's, 2^-23 for float32. And the least
  // size of a parameter that a step is relative to.
  std::optional<double> eps1 = std::nullopt;
  double eps2 = 1e-3;

  // Updates whose root mean square is larger are scaled down to it. At least 1.
  double d = 1;

  // The share of p, times lr, that a step takes away. 0: none.
  double weight_decay = 0;
};

// kInvalidArgument, naming the field, for a value that is out of range, as in torch.optim.Adafactor, or not finite.
absl::Status Validate(const AdafactorOptions& options);

// With g the gradient of a parameter p, t the number of its steps and w = t^beta2_decay:
//   a = max(eps2, RMS(p)) min(lr, 1 / sqrt(t));  p = p - lr weight_decay p
//   r = lerp(r, means of g^2 over rows, w);  c = lerp(c, means of g^2 over columns, w);  v = r c / max(mean(r), eps1)
//   of a vector v = lerp(v, g^2, w)
//   u = g / sqrt(max(v, eps1^2));  p = p - a u / max(1, RMS(u) / d)
// States: "row_var" (r) and "col_var" (c), which every rank has whole, of parameters of two or more dimensions, as
// matrices of the last two; "variance" (v) of others. Means are sums over all ranks, so n ranks train as one but for
// rounding.
class Adafactor final : public Optimizer {
 public:
  // Parameters with their own options.
  struct Group {
    std::vector<ShardedParameter*> parameters;
    AdafactorOptions options;
  };

  // The caller owns `parameters`, which outlive the optimizer. `exchange` is for sharded ones (MakeShardExchange); null
  // if this rank has all parameters whole.
  Adafactor(std::vector<ShardedParameter*> parameters, const AdafactorOptions& options,
            std::shared_ptr<ShardExchange> exchange = nullptr);
  explicit Adafactor(std::vector<Group> groups, std::shared_ptr<ShardExchange> exchange = nullptr);

  // Adds a group of parameters, which have no state yet: PyTorch's add_param_group. Every rank adds the same.
  // kInvalidArgument for options that Validate refuses and for a parameter that is in two groups, naming it. An error
  // adds nothing. Blocks.
  absl::Status AddParamGroup(Group group);

  // Waits for `stream` and computes on the calling thread. kInvalidArgument, naming the group, for options that
  // Validate refuses; kUnimplemented, naming the parameter, for one on a device or of tensor parallelism;
  // kFailedPrecondition for a slice without an exchange. Nothing is changed then. Collective with an exchange.
  absl::Status Step(Stream& stream) override;

 private:
  struct Work;

  std::vector<ParamGroupState> FormulaGroups() const override;
  absl::Status CheckFormula(size_t group, std::string_view name, double value) const override;
  void AssignFormula(size_t group, std::string_view name, double value) override;
  absl::StatusOr<std::vector<Work>> Prepare(const std::vector<size_t>& indices);
  absl::Status Sum(const std::vector<Work>& works, std::vector<std::vector<double>>& values) const;
  absl::Status Update(std::vector<Work>& works, int threads) const;

  std::vector<Group> groups_;
  std::shared_ptr<ShardExchange> exchange_;  // null: parameters are whole
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_ADAFACTOR_H_
