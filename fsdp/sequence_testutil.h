// SPDX-License-Identifier: Apache-2.0
//
// TestSequence: children that run one after another, under any type name: trees for tests of wrapping.
#ifndef FSDP_FSDP_SEQUENCE_TESTUTIL_H_
#define FSDP_FSDP_SEQUENCE_TESTUTIL_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/module.h"

namespace fsdp {

class TestSequence final : public Module {
 public:
  explicit TestSequence(std::string type_name = "Sequential") : type_name_(std::move(type_name)) {}

  std::string_view type_name() const override { return type_name_; }

  // Names children "0", "1", ... and returns the child.
  template <typename M>
  M* Add(std::unique_ptr<M> child) {
    return AddChild(std::to_string(children().size()), std::move(child));
  }

  // x weight + bias: in * out + out elements.
  Conv1D* AddLinear(int64_t in, int64_t out) {
    return Add(std::make_unique<Conv1D>(in, out, Initializer::Normal(0, 0.5f)));
  }

  TestSequence* AddSequence(std::string type_name = "Sequential") {
    return Add(std::make_unique<TestSequence>(std::move(type_name)));
  }

  // An additional parameter, which forward does not use.
  std::shared_ptr<Parameter> AddUnused(std::string name, Shape shape) {
    return AddParameter(std::move(name), std::move(shape), Initializer::Constant(1));
  }
  void AddState(std::string name, Tensor data) { AddBuffer(std::move(name), std::move(data)); }
  void AddAlias(std::string name, std::shared_ptr<Parameter> parameter) {
    AddSharedParameter(std::move(name), std::move(parameter));
  }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    Tensor x = input;
    for (const auto& [name, child] : children()) {
      FSDP_ASSIGN_OR_RETURN(x, child->Forward(x, tape));
    }
    return x;
  }

  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    Tensor grad = grad_output;
    for (auto child = children().rbegin(); child != children().rend(); ++child) {
      FSDP_ASSIGN_OR_RETURN(grad, child->second->Backward(grad, tape));
    }
    return grad;
  }

  const std::string type_name_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_SEQUENCE_TESTUTIL_H_
