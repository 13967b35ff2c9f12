// SPDX-License-Identifier: Apache-2.0
//
// Sequential: modules that run one after another, named "0", "1", ..., as torch.nn.Sequential. The outputs of one are
// the inputs of the next: one tensor or several. Without children it returns its inputs.
#ifndef FSDP_NN_SEQUENTIAL_H_
#define FSDP_NN_SEQUENTIAL_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fsdp/nn/module.h"

namespace fsdp {

class Sequential final : public Module {
 public:
  Sequential() = default;

  // Takes over the modules, in the order in which they run.
  template <typename... Modules>
  explicit Sequential(std::unique_ptr<Modules>... modules) {
    (Append(std::move(modules)), ...);
  }

  std::string_view type_name() const override { return "Sequential"; }

  // Adds a child that runs last, named by its index, and returns it. Call before the model is wrapped.
  template <typename M>
  M* Append(std::unique_ptr<M> child) {
    return AddChild(std::to_string(children().size()), std::move(child));
  }

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) override;
  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grad_outputs, Tape& tape) override;
};

}  // namespace fsdp

#endif  // FSDP_NN_SEQUENTIAL_H_
