// SPDX-License-Identifier: Apache-2.0
//
// ShardedModule: FSDP for an unchanged module of LibTorch. The module's parameters keep their names and places but lose
// their memory. fsdp/ sees a mirror of it (mirror_module.h), so options, optimizers, state dicts and checkpoints work
// as for FullyShardedDataParallel. Training:
//
//   Net net;                                                                        // a torch::nn::ModuleHolder
//   FSDP_ASSIGN_OR_RETURN(auto sharded, Shard(*net, group, {
//       .auto_wrap_policy = LambdaWrapPolicy(IsAnyTorch<BlockImpl>())}));
//   AdamW optimizer(sharded->parameters(), {.lr = 3e-4});
//   for (...) {
//     at::Tensor loss = sharded->Forward([&] { return loss_of(net->forward(x), y); });
//     loss.backward();
//     FSDP_RETURN_IF_ERROR(optimizer.Step(sharded->stream()));
//     optimizer.ZeroGrad();
//   }
//
// A unit is gathered when an operator first gets one of its parameters. It is given back, in forward, when a sibling
// unit is used, and in backward when it has all its gradients. Forward and backward throw c10::Error, as LibTorch does;
// all other functions return a Status. After a forward or backward that threw, the next Forward starts afresh. One
// thread per rank uses a ShardedModule and its module; set at::set_num_threads(1) for results with the same bits. All
// ranks must use the same units in the same order, since gathering is collective: a rank that uses another unit waits
// until the group's timeout.
#ifndef FSDP_LIBTORCH_SHARDED_MODULE_H_
#define FSDP_LIBTORCH_SHARDED_MODULE_H_

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/libtorch/map_tensors.h"
#include "fsdp/libtorch/mirror_module.h"
#include "fsdp/libtorch/torch_module_trees.h"
#include "fsdp/libtorch/torch_outputs.h"
#include "fsdp/libtorch/unit_call.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class UnitFollower;

// While it lives, the module's parameters are whole, in their original dtype, for the program to read or edit; see
// SummonFullParamsGuard. Forward is refused.
class TorchSummonGuard final {
 public:
  ~TorchSummonGuard();
  TorchSummonGuard(const TorchSummonGuard&) = delete;
  TorchSummonGuard& operator=(const TorchSummonGuard&) = delete;

  // Keeps the edits and takes the memory away. Later calls do nothing. Collective; blocks.
  absl::Status Close();

 private:
  friend class ShardedModule;
  TorchSummonGuard(std::unique_ptr<SummonFullParamsGuard> guard, std::shared_ptr<UnitFollower> follower,
                   Stream& stream);

  std::unique_ptr<SummonFullParamsGuard> guard_;
  const std::shared_ptr<UnitFollower> follower_;
  Stream* const stream_;  // the module's
};

class ShardedModule final {
 public:
  ~ShardedModule();

  // Calls `forward`, which computes with the module, and returns its result, of any type, cast to the root's
  // mp_policy.output_dtype if it has one. Tensors in the result are found if torch_outputs.h supports its type;
  // backward of any of them then gathers ahead. A tensor that was not found, since its type is the program's own or it
  // was kept elsewhere, has the same gradients. Several Forwards may come before one backward. Under torch::NoGradGuard
  // nothing is kept for a backward. Throws c10::Error; collective.
  template <typename Function>
  std::invoke_result_t<Function&> Forward(Function&& forward) {
    BeginForward();
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
        forward();
        EndForward({});
      } else {
        std::invoke_result_t<Function&> outputs = forward();
        if constexpr (!std::is_reference_v<std::invoke_result_t<Function&>>) {
          if (casts_outputs()) MapTensors(outputs, [this](const at::Tensor& tensor) { return CastOutput(tensor); });
        } else {
          TORCH_CHECK(!casts_outputs(), "output_dtype: forward returns a reference; return a value, to be cast");
        }
        EndForward(TensorsIn(outputs));
        return outputs;
      }
    } catch (...) {
      AbandonForward();
      throw;
    }
  }

  // The same for a forward with arguments. Their floating-point tensors, at any depth, are first cast to the root's
  // param_dtype, if the options have one and ask for it (cast_root_forward_inputs, mp_policy.cast_forward_inputs).
  template <typename Function, typename... Inputs>
  requires(sizeof...(Inputs) > 0) auto Forward(Function&& forward, const Inputs&... inputs) {
    return Forward([&] { return forward(CastInput(inputs)...); });
  }

  // Activation checkpointing: calls `forward(inputs...)`, but keeps only the inputs for backward, which runs `forward`
  // again. Call it within Forward. `forward` takes and returns tensors: at::Tensor, or a std::vector of them. It must
  // not depend on anything that changes before backward; the generator of random numbers (dropout) is set back for the
  // second run. The gradients have the same bits as without it. Throws as Forward does.
  at::Tensor Checkpoint(std::function<at::Tensor(const at::Tensor& input)> forward, const at::Tensor& input);
  std::vector<at::Tensor> Checkpoint(std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward,
                                     const std::vector<at::Tensor>& inputs);

  // This rank's slice of each parameter, for an optimizer of this project; see FullyShardedDataParallel.
  std::vector<ShardedParameter*> parameters() const { return fsdp_->parameters(); }

  // This rank's slices of the trainable parameters as leaf tensors, for an optimizer of torch::optim: their memory is
  // the shards, and they have their gradients after backward. Use the optimizer through TorchOptimizer
  // (torch_optimizer.h) or directly; after its zero_grad() the next backward starts from zero. Returns the same tensors
  // at each call.
  const std::vector<at::Tensor>& LocalParameters();

  // State dicts, clipping, accumulation without communication, restoring. Its SummonFullParams does not reach the
  // module's tensors: call this class's. On a GPU, its work on tensors comes after all work that LibTorch was given
  // before this call on the calling thread's current stream; so call this each time.
  FullyShardedDataParallel& fsdp() const;

  // The mirror of the module at path `fqn` ("" for the root); null if there is no such module.
  MirrorModule* mirror(std::string_view fqn = "") const;

  // The result of FullyShard for the module at path `fqn`, for its setters; null for FSDP1 and for modules that are not
  // units.
  FsdpModule* fsdp_module(std::string_view fqn = "") const;

  // Returns the errors of FullyShardedDataParallel::SummonFullParams. Collective; blocks.
  absl::StatusOr<std::unique_ptr<TorchSummonGuard>> SummonFullParams(const SummonFullParamsOptions& options = {});

  // The stream of forward, backward and the optimizer; ordered with LibTorch as fsdp() is.
  Stream& stream() const { return fsdp().stream(); }

  // Bytes of whole parameters that tensors refer to now, and the most since the last call.
  int64_t bound_bytes() const;
  int64_t TakePeakBoundBytes();

  // Wraps a mirror and drives the tensors of its module: for options that name modules of the mirror (ignored_modules),
  // and, in the second form, after FullyShard of single modules. Collective; blocks.
  static absl::StatusOr<std::unique_ptr<ShardedModule>> Wrap(std::unique_ptr<MirrorModule> mirror, ShardGroups groups,
                                                             FsdpOptions options = {});
  static absl::StatusOr<std::unique_ptr<ShardedModule>> FromFullyShard(std::unique_ptr<MirrorModule> mirror);

 private:
  friend class TorchOptimizer;

  explicit ShardedModule(std::unique_ptr<FullyShardedDataParallel> fsdp);
  absl::Status Follow(const MirrorModule& mirror);

  void BeginForward();
  void EndForward(const std::vector<at::Tensor>& outputs);
  void AbandonForward();

  // A copy, or the input itself if its type cannot be copied.
  template <typename Input>
  decltype(auto) CastInput(const Input& input) const {
    if constexpr (std::is_copy_constructible_v<Input>) {
      Input copy = input;
      MapTensors(copy, [this](const at::Tensor& tensor) { return CastInputTensor(tensor); });
      return copy;
    } else {
      return (input);
    }
  }
  at::Tensor CastInputTensor(const at::Tensor& input) const;
  bool casts_outputs() const;
  at::Tensor CastOutput(const at::Tensor& output) const;

  std::unique_ptr<FullyShardedDataParallel> fsdp_;
  std::shared_ptr<UnitFollower> follower_;
  std::unique_ptr<CallUnitRegistry> callers_;
};

// FSDP1: shards `module` over `groups`, with FullyShardedDataParallel's options. Takes the values of its parameters,
// frees their memory and gives each rank its shard; buffers stay whole. `module` must outlive the result.
//
// Inputs of inner units are cast at CallUnit, or else at the operators that use their parameters (operand_casts.h).
// activation_checkpointing, and output_dtype of inner units, require that CallUnit calls the child; otherwise Forward
// throws at the first use of the unit and names it. Shard itself refuses them for units of TorchScript, whose calls no
// program makes, and refuses activation_checkpointing for the root and for modules without their own parameters (call
// Checkpoint). kInvalidArgument, naming the parameter, if it is on another device than the groups', without memory
// (meta), sparse or quantized. Collective; blocks.
absl::StatusOr<std::unique_ptr<ShardedModule>> Shard(torch::nn::Module& module, ShardGroups groups,
                                                     FsdpOptions options = {});
absl::StatusOr<std::unique_ptr<ShardedModule>> Shard(torch::jit::Module& module, ShardGroups groups,
                                                     FsdpOptions options = {});

// FSDP2: FullyShard of every module for which `units` holds, children first, and of the root, all with `options`. The
// root gets no activation_checkpointing, since that would be a second forward of everything. Otherwise as Shard.
absl::StatusOr<std::unique_ptr<ShardedModule>> FullyShard(torch::nn::Module& module,
                                                          std::shared_ptr<const DeviceMesh> mesh,
                                                          const ModulePredicate& units,
                                                          const FullyShardOptions& options = {});
absl::StatusOr<std::unique_ptr<ShardedModule>> FullyShard(torch::jit::Module& module,
                                                          std::shared_ptr<const DeviceMesh> mesh,
                                                          const ModulePredicate& units,
                                                          const FullyShardOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_SHARDED_MODULE_H_
