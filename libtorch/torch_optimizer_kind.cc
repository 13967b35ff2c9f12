// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/torch_optimizer_kind.h"

#include <torch/optim.h>

#include <tuple>
#include <typeinfo>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/option_check.h"

namespace fsdp {
namespace {

using Kind = TorchOptimizerKind;
using Options = Kind::Options;

// A state, or an option, of the kind's class, which KindOf has checked.
template <typename S>
Kind::Field FieldOf(
    std::string name, at::Tensor& (S::*tensor)() noexcept,
    std::function<bool(const Options&)> exists = [](const Options&) { return true; }) {
  return {std::move(name), [tensor](Kind::State& state) -> at::Tensor& { return (static_cast<S&>(state).*tensor)(); },
          std::move(exists)};
}

using Check = absl::Status (*)(std::string_view, double);

template <typename O>
Kind::Hyperparameter Number(std::string name, double& (O::*field)() noexcept, Check check) {
  const auto at = [field](const Options& options) -> double& {
    return (static_cast<O&>(const_cast<Options&>(options)).*
            field)();  // NOLINT: only `set` writes, and has them mutable
  };
  return {std::move(name), at, [at](Options& options, double value) { at(options) = value; }, check};
}

// An option that decides which states exist, or how they begin.
template <typename O, typename T>
Kind::Hyperparameter Fixed(std::string name, const T& (O::*field)() const noexcept) {
  return {std::move(name),
          [field](const Options& options) { return static_cast<double>((static_cast<const O&>(options).*field)()); },
          nullptr, CheckFiniteOption};
}

template <typename O, size_t kIndex>
// betas is one tuple in LibTorch, two numbers in state dicts.
Kind::Hyperparameter Beta(std::string name) {
  return {
      std::move(name), [](const Options& options) { return std::get<kIndex>(static_cast<const O&>(options).betas()); },
      [](Options& options, double value) { std::get<kIndex>(static_cast<O&>(options).betas()) = value; }, CheckBelow1};
}

template <typename O, typename S>
Kind AdamKind(std::string name) {
  Kind kind;
  kind.name = std::move(name);
  // In the names of PyTorch's state dicts, which checkpoints of Python have.
  kind.fields = {FieldOf<S>("exp_avg", &S::exp_avg), FieldOf<S>("exp_avg_sq", &S::exp_avg_sq),
                 FieldOf<S>("max_exp_avg_sq", &S::max_exp_avg_sq,
                            [](const Options& o) { return static_cast<const O&>(o).amsgrad(); })};
  kind.hyperparameters = {Number<O>("lr", &O::lr, CheckNotNegative),
                          Beta<O, 0>("beta1"),
                          Beta<O, 1>("beta2"),
                          Number<O>("eps", &O::eps, CheckNotNegative),
                          Number<O>("weight_decay", &O::weight_decay, CheckNotNegative),
                          Fixed<O, bool>("amsgrad", &O::amsgrad)};
  kind.make_state = [] { return std::make_unique<S>(); };
  kind.set_step = [](Kind::State& state, int64_t step) { static_cast<S&>(state).step(step); };
  return kind;
}

Kind SgdKind() {
  using O = torch::optim::SGDOptions;
  using S = torch::optim::SGDParamState;
  Kind kind;
  kind.name = "SGD";
  kind.fields = {FieldOf<S>("momentum_buffer", &S::momentum_buffer,
                            // Without momentum LibTorch makes no state at all.
                            [](const Options& o) { return static_cast<const O&>(o).momentum() != 0; })};
  kind.hyperparameters = {Number<O>("lr", &O::lr, CheckNotNegative), Fixed<O, double>("momentum", &O::momentum),
                          Number<O>("dampening", &O::dampening, CheckFiniteOption),
                          Number<O>("weight_decay", &O::weight_decay, CheckNotNegative),
                          Fixed<O, bool>("nesterov", &O::nesterov)};
  kind.make_state = [] { return std::make_unique<S>(); };
  kind.set_step = [](Kind::State&, int64_t) {};
  kind.has_step = false;
  return kind;
}

Kind RmspropKind() {
  using O = torch::optim::RMSpropOptions;
  using S = torch::optim::RMSpropParamState;
  Kind kind;
  kind.name = "RMSprop";
  kind.fields = {
      FieldOf<S>("square_avg", &S::square_avg),
      FieldOf<S>("momentum_buffer", &S::momentum_buffer,
                 [](const Options& o) { return static_cast<const O&>(o).momentum() > 0; }),
      FieldOf<S>("grad_avg", &S::grad_avg, [](const Options& o) { return static_cast<const O&>(o).centered(); })};
  kind.hyperparameters = {
      Number<O>("lr", &O::lr, CheckNotNegative),   Number<O>("alpha", &O::alpha, CheckNotNegative),
      Number<O>("eps", &O::eps, CheckNotNegative), Number<O>("weight_decay", &O::weight_decay, CheckNotNegative),
      Fixed<O, double>("momentum", &O::momentum),  Fixed<O, bool>("centered", &O::centered)};
  kind.make_state = [] { return std::make_unique<S>(); };
  kind.set_step = [](Kind::State& state, int64_t step) { static_cast<S&>(state).step(step); };
  return kind;
}

Kind AdagradKind() {
  using O = torch::optim::AdagradOptions;
  using S = torch::optim::AdagradParamState;
  Kind kind;
  kind.name = "Adagrad";
  kind.fields = {FieldOf<S>("sum", &S::sum)};
  kind.hyperparameters = {Number<O>("lr", &O::lr, CheckNotNegative),
                          Number<O>("lr_decay", &O::lr_decay, CheckNotNegative),
                          Number<O>("weight_decay", &O::weight_decay, CheckNotNegative),
                          Fixed<O, double>("initial_accumulator_value", &O::initial_accumulator_value),
                          Number<O>("eps", &O::eps, CheckNotNegative)};
  kind.make_state = [] { return std::make_unique<S>(); };
  kind.set_step = [](Kind::State& state, int64_t step) { static_cast<S&>(state).step(step); };
  // Adagrad makes its state in the constructor, so a parameter without steps has one too.
  kind.initial_value = [](const Options& o) { return static_cast<const O&>(o).initial_accumulator_value(); };
  return kind;
}

}  // namespace

absl::StatusOr<const TorchOptimizerKind*> KindOf(const torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  static const Kind adam = AdamKind<optim::AdamOptions, optim::AdamParamState>("Adam");
  static const Kind adamw = AdamKind<optim::AdamWOptions, optim::AdamWParamState>("AdamW");
  static const Kind sgd = SgdKind(), rmsprop = RmspropKind(), adagrad = AdagradKind();
  // By class, since hyperparameters and states are only reachable through the classes.
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) return &adamw;
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) return &adam;
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) return &sgd;
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) return &rmsprop;
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) return &adagrad;
  return absl::InvalidArgumentError(absl::StrCat(
      "TorchOptimizer of a ", c10::demangle(typeid(optimizer).name()),
      ": expected Adam, AdamW, SGD, RMSprop or Adagrad, which update each element by itself and so work on slices"));
}

}  // namespace fsdp
