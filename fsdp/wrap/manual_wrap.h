// SPDX-License-Identifier: Apache-2.0
//
// WrapModule: wrapping by hand, PyTorch's wrap() within enable_wrap(). Marks modules, in any order, as units of the
// model that FullyShardedDataParallel::Wrap or WrapRootsBelow makes of a module around them, with options in which they
// differ from the model's:
//
//   FSDP_RETURN_IF_ERROR(WrapModule(*encoder, {.mixed_precision = MixedPrecision{.param_dtype = DType::kBFloat16}}));
//   FSDP_RETURN_IF_ERROR(WrapModule(*decoder, {.sharding_strategy = ShardingStrategy::kShardGradOp}));
//   FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
//
// In PyTorch an instance is the module's wrapper; here modules stay in place, and one executor runs all units.
#ifndef FSDP_FSDP_WRAP_MANUAL_WRAP_H_
#define FSDP_FSDP_WRAP_MANUAL_WRAP_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/fsdp/options/unit_options.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Marks `module`. Until the model is made, its forward is refused. kInvalidArgument, naming it, for a container without
// a forward, a module that was wrapped before by hand, by a model or by FullyShard, and overrides that Validate
// refuses. All ranks must mark the same modules. Local.
absl::Status WrapModule(Module& module, const UnitOverrides& overrides = {});

// The extension that WrapModule attaches to a module.
class ManualWrap final : public ModuleExtension, private ModuleHooks {
 public:
  explicit ManualWrap(const UnitOverrides& overrides) : overrides_(overrides) {}
  ModuleHooks* hooks() { return this; }

  // Null if WrapModule was not applied to `module`.
  static const ManualWrap* Of(const Module& module);

  const UnitOverrides& overrides() const { return overrides_; }

 private:
  absl::Status PreForward(Module& module, absl::Span<Tensor> inputs, Tape& tape) override;
  absl::Status PostForward(Module& module, absl::Span<Tensor> outputs, Tape& tape) override;
  absl::Status PreBackward(Module& module, absl::Span<Tensor> grad_outputs, Tape& tape) override;
  absl::Status PostBackward(Module& module, absl::Span<Tensor> grad_inputs, Tape& tape) override;

  const UnitOverrides overrides_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_WRAP_MANUAL_WRAP_H_
