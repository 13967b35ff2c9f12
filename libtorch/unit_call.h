// SPDX-License-Identifier: Apache-2.0
//
// CallUnit: the call of a child's forward by its parent, with the work that FSDP does in module hooks in Python.
// torch::nn::Module has no hooks, so a class that needs them writes
//
//   for (const auto& block : *blocks) x = CallUnit(*block->as<Block>(), x);     // for  x = block->forward(x)
//
// If the child is a unit of a sharded model, its floating-point inputs are cast to its param_dtype and its outputs to
// output_dtype (both if the options ask for it), backward runs it again if it has activation_checkpointing, and it is
// given back when it returns. For a child that is not a unit, or in a model that is not sharded, it is a plain call. So
// one class serves both.
#ifndef FSDP_LIBTORCH_UNIT_CALL_H_
#define FSDP_LIBTORCH_UNIT_CALL_H_

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/libtorch/map_tensors.h"
#include "fsdp/libtorch/torch_outputs.h"
#include "fsdp/libtorch/unit_border.h"

namespace fsdp {

class UnitFollower;

// One call of one module. For CallUnit.
class CallUnitScope final {
 public:
  explicit CallUnitScope(const torch::nn::Module& module);
  ~CallUnitScope();
  CallUnitScope(const CallUnitScope&) = delete;
  CallUnitScope& operator=(const CallUnitScope&) = delete;

  at::Tensor CastInput(const at::Tensor& input);
  at::Tensor CastOutput(const at::Tensor& output) const;
  bool recomputes() const { return follower_ != nullptr && border_.recomputes && at::GradMode::is_enabled(); }

  // Calls `forward` as the unit's.
  template <typename Function>
  auto Run(const Function& forward) const {
    const Within within(*this);
    auto outputs = forward();
    within.Close();
    return outputs;
  }

  // The same under activation checkpointing.
  std::vector<at::Tensor> Recompute(std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward,
                                    const std::vector<at::Tensor>& inputs) const;

 private:
  // While it lives, the unit may compute.
  class Within final {
   public:
    explicit Within(const CallUnitScope& call) : Within(call.follower_, call.node_) {}
    Within(std::shared_ptr<UnitFollower> follower, int node);
    ~Within();
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;
    // Call after the forward has returned: gives the unit back.
    void Close() const;

   private:
    const std::shared_ptr<UnitFollower> follower_;
    const int node_;
  };

  std::shared_ptr<UnitFollower> follower_;  // null: a plain call
  int node_ = -1;
  UnitBorder border_;
  std::optional<at::ScalarType> input_type_;  // that the first input had
};

// A module, a ModuleHolder of one, or a std::shared_ptr to one.
template <typename Unit>
auto& ImplOf(Unit& unit) {
  if constexpr (std::is_base_of_v<torch::nn::Module, std::remove_cv_t<Unit>>) {
    return unit;
  } else {
    return *unit;
  }
}

// unit.forward(inputs...), which must not return void. Inputs and outputs may have any structure that torch_outputs.h
// and map_tensors.h know; those with tensors are copied (as handles). Under activation checkpointing forward must
// compute the same when it runs again. Throws c10::Error, and everything that forward throws; collective within
// ShardedModule::Forward.
template <typename Unit, typename... Inputs>
auto CallUnit(Unit&& unit, const Inputs&... inputs) {
  auto& impl = ImplOf(unit);
  using Output = std::decay_t<decltype(impl.forward(inputs...))>;
  CallUnitScope call(impl);
  std::tuple<std::decay_t<Inputs>...> arguments(inputs...);
  MapTensors(arguments, [&call](const at::Tensor& tensor) { return call.CastInput(tensor); });
  const auto forward = [&impl](auto& given) {
    return std::apply([&impl](auto&... each) -> Output { return impl.forward(each...); }, given);
  };
  std::optional<Output> outputs;
  if (!call.recomputes()) {
    outputs.emplace(call.Run([&] { return forward(arguments); }));
  } else {
    const std::vector<at::Tensor> tensors = TensorsIn(arguments);
    MapTensors(arguments, [](const at::Tensor&) { return at::empty({0}); });  // the node of the graph keeps them
    const auto form = std::make_shared<std::optional<Output>>();              // of what the first run returned
    const auto part = [arguments, forward, form](const std::vector<at::Tensor>& given) {
      auto again = arguments;
      size_t next = 0;
      MapTensors(again, [&](const at::Tensor&) { return given[next++]; });
      Output returned = forward(again);
      std::vector<at::Tensor> found = TensorsIn(returned);
      if (!at::GradMode::is_enabled()) form->emplace(std::move(returned));
      return found;
    };
    const std::vector<at::Tensor> found = call.Recompute(part, tensors);
    outputs = std::exchange(*form, std::nullopt);
    size_t next = 0;
    MapTensors(*outputs, [&](const at::Tensor&) { return found[next++]; });
  }
  MapTensors(*outputs, [&call](const at::Tensor& tensor) { return call.CastOutput(tensor); });
  return *std::move(outputs);
}

// The follower of each module, for CallUnit. Held by the ShardedModule.
class CallUnitRegistry final {
 public:
  struct Called {
    const torch::nn::Module* module = nullptr;
    int node = -1;
    UnitBorder border = {};
  };
  CallUnitRegistry(const std::shared_ptr<UnitFollower>& follower, std::vector<Called> called);
  ~CallUnitRegistry();
  CallUnitRegistry(const CallUnitRegistry&) = delete;
  CallUnitRegistry& operator=(const CallUnitRegistry&) = delete;

 private:
  const std::vector<Called> called_;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_UNIT_CALL_H_
