// SPDX-License-Identifier: Apache-2.0
#include "optim/adamw.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optim/update_kernels.h"

namespace fsdp {
namespace {

// One parameter's part of a step; holds its memory until the step ran.
struct Update {
  AdamWScalars scalars;
  Tensor data, grad, exp_avg, exp_avg_sq;

  void Run() const {
    UpdateAdamW(scalars, grad.dtype(), grad.data(), grad.numel(), data.data_as<float>(), exp_avg.data_as<float>(),
                exp_avg_sq.data_as<float>());
  }
};

AdamWScalars ScalarsOf(const AdamWOptions& options, int64_t step) {
  const double bias_correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double bias_correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  return {.decay = static_cast<float>(1 - options.lr * options.weight_decay),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .negative_step_size = static_cast<float>(-(options.lr / bias_correction1)),
          .sqrt_bias_correction2 = static_cast<float>(std::sqrt(bias_correction2)),
          .eps = static_cast<float>(options.eps)};
}

std::vector<ShardedParameter*> Flatten(const std::vector<AdamW::Group>& groups) {
  std::vector<ShardedParameter*> all;
  for (const AdamW::Group& group : groups) all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  return all;
}

}  // namespace

AdamW::AdamW(std::vector<ShardedParameter*> parameters, const AdamWOptions& options)
    : AdamW(std::vector<Group>{{std::move(parameters), options}}) {}

AdamW::AdamW(std::vector<Group> groups)
    : groups_(std::move(groups)), state_({"exp_avg", "exp_avg_sq"}, Flatten(groups_)) {
  parameters_ = Flatten(groups_);
  steps_.assign(parameters_.size(), 0);
  for (size_t g = 0; g < groups_.size(); ++g) group_of_.insert(group_of_.end(), groups_[g].parameters.size(), g);
}

std::vector<AdamW::Group> AdamW::DecayMatricesOnly(absl::Span<ShardedParameter* const> parameters,
                                                   const AdamWOptions& options) {
  std::vector<Group> groups = {{{}, options}, {{}, options}};
  groups[1].options.weight_decay = 0;
  for (ShardedParameter* parameter : parameters) {
    groups[parameter->shape.rank() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  return groups;
}

absl::Status AdamW::Step(Stream& stream) {
  std::vector<Update> updates;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ShardedParameter& parameter = *parameters_[i];
    if (!parameter.has_grad) continue;
    RETURN_IF_ERROR(CheckUpdatable(parameter));
    RETURN_IF_ERROR(state_.Create(i));
    updates.push_back({ScalarsOf(groups_[group_of_[i]].options, steps_[i] + 1), parameter.data, parameter.grad,
                       state_.slice(0, i), state_.slice(1, i)});
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->has_grad) ++steps_[i];  // only now: an error above leaves the optimizer as it was
  }
  stream.Run([updates = std::move(updates)] {
    for (const Update& update : updates) update.Run();
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

std::vector<std::string> AdamW::StateNames() const { return state_.names(); }

absl::StatusOr<Tensor> AdamW::State(size_t index, std::string_view name, bool create) {
  return state_.Find(index, name, create);
}

std::vector<ParamGroupState> AdamW::ParamGroups() const {
  std::vector<ParamGroupState> states;
  for (const Group& group : groups_) {
    ParamGroupState state;
    for (const ShardedParameter* parameter : group.parameters) state.params.push_back(parameter->fqn);
    const AdamWOptions& o = group.options;
    state.values = {
        {"lr", o.lr}, {"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", o.weight_decay}};
    states.push_back(std::move(state));
  }
  return states;
}

absl::Status AdamW::SetHyperparameter(std::string_view name, double value) {
  static constexpr std::pair<std::string_view, double AdamWOptions::*> kFields[] = {
      {"lr", &AdamWOptions::lr},
      {"beta1", &AdamWOptions::beta1},
      {"beta2", &AdamWOptions::beta2},
      {"eps", &AdamWOptions::eps},
      {"weight_decay", &AdamWOptions::weight_decay},
  };
  for (const auto& [field, member] : kFields) {
    if (field != name) continue;
    for (Group& group : groups_) group.options.*member = value;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("AdamW has no hyperparameter \"", std::string(name),
                                                 "\"; it has lr, beta1, beta2, eps, weight_decay"));
}

}  // namespace fsdp
