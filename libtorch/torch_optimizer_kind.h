// SPDX-License-Identifier: Apache-2.0
//
// TorchOptimizerKind: the states and hyperparameters of one class of torch::optim, which LibTorch shows only by C++
// names.
#ifndef FSDP_LIBTORCH_TORCH_OPTIMIZER_KIND_H_
#define FSDP_LIBTORCH_TORCH_OPTIMIZER_KIND_H_

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

struct TorchOptimizerKind {
  using State = torch::optim::OptimizerParamState;
  using Options = torch::optim::OptimizerOptions;

  // A state that each element has, by PyTorch's name.
  struct Field {
    std::string name;
    std::function<at::Tensor&(State&)> tensor;
    std::function<bool(const Options&)> exists;  // in groups with these options
  };
  struct Hyperparameter {
    std::string name;
    std::function<double(const Options&)> get;
    std::function<void(Options&, double)> set;                         // null: fixed when the optimizer is made
    std::function<absl::Status(std::string_view name, double)> check;  // of its range
  };

  std::string name;  // "AdamW"
  std::vector<Field> fields;
  std::vector<Hyperparameter> hyperparameters;
  std::function<std::unique_ptr<State>()> make_state;
  std::function<void(State&, int64_t step)> set_step;
  bool has_step = true;  // false: the class does not count its steps
  // The value of all fields before the first step, if the class makes the state in its constructor.
  std::function<double(const Options&)> initial_value;  // null: the first step makes the state
};

// The class of `optimizer`, one of Adam, AdamW, SGD, RMSprop and Adagrad. kInvalidArgument for others, naming the
// class.
absl::StatusOr<const TorchOptimizerKind*> KindOf(const torch::optim::Optimizer& optimizer);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_TORCH_OPTIMIZER_KIND_H_
