// SPDX-License-Identifier: Apache-2.0
//
// Module: a layer with explicit Forward and Backward. It declares parameters and children by name, as in PyTorch, and
// knows nothing of sharding: FSDP watches it through ModuleHooks. Work is stream-ordered; errors that the host can see
// (shapes, sharded parameters) are returned as a Status, errors of kernels by the stream.
//
//   class Mlp final : public Module {
//     Mlp() { fc_ = AddChild("c_fc", std::make_unique<Conv1D>(48, 192)); ... }
//     absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override;
//     absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;
//   };
//
// A module of several inputs or outputs (a mask, an encoder's states, an auxiliary loss) has DoForwardList and
// DoBackwardList instead.
#ifndef FSDP_NN_MODULE_H_
#define FSDP_NN_MODULE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/nn/parameter.h"
#include "fsdp/nn/tape.h"

namespace fsdp {

class Module;

enum class BufferPersistence : uint8_t {
  kPersistent,     // part of state dicts
  kNonPersistent,  // computed anew when the module is built, and in no state dict
};

// State of a module that is not learned: running statistics, position tables. Optimizers do not see it and FSDP never
// shards it; state dicts hold the persistent ones. (tensor/buffer.h is memory, not this.)
struct ModuleBuffer {
  std::string fqn;  // fully qualified name under the root module, first one if shared; set by Module::AssignNames
  DType dtype = DType::kFloat32;  // the original one; `data` may be in another
  BufferPersistence persistence = BufferPersistence::kPersistent;
  Tensor data;
};

// Called around a module's own forward and backward, by the thread that calls those; this is how FSDP unshards and
// reshards. PreForward may replace inputs (a cast), PostForward outputs; PreBackward and PostBackward likewise the
// gradients. Tensors may be undefined. An error ends the pass: the layer's code and the later hooks do not run.
class ModuleHooks {
 public:
  virtual ~ModuleHooks() = default;
  virtual absl::Status PreForward(Module& module, absl::Span<Tensor> inputs, Tape& tape) = 0;
  virtual absl::Status PostForward(Module& module, absl::Span<Tensor> outputs, Tape& tape) = 0;
  virtual absl::Status PreBackward(Module& module, absl::Span<Tensor> grad_outputs, Tape& tape) = 0;
  virtual absl::Status PostBackward(Module& module, absl::Span<Tensor> grad_inputs, Tape& tape) = 0;
};

// State that a library attaches to a module and that lives as long as the module (FullyShard: its units).
class ModuleExtension {
 public:
  virtual ~ModuleExtension() = default;
};

class Module {
 public:
  using NamedModule = std::pair<std::string, Module*>;
  using NamedParameter = std::pair<std::string, std::shared_ptr<Parameter>>;
  using NamedBuffer = std::pair<std::string, std::shared_ptr<ModuleBuffer>>;

  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Output of `input`. If `tape` keeps for backward, Backward must follow on the same tape, in the reverse order of the
  // forwards. The work is put on the tape's stream and may not have run when this returns. The first form is for a
  // module of one input and one output, the second for any; kInvalidArgument, naming the module, for a wrong number of
  // tensors.
  absl::StatusOr<Tensor> Forward(const Tensor& input, Tape& tape);
  absl::StatusOr<TensorList> Forward(TensorList inputs, Tape& tape);

  // Adds to the grads (Parameter::Grad) of the parameters that require them, and returns the gradient of each input
  // (undefined for an input without one, such as tokens). The gradient of an output that the loss does not depend on
  // may be undefined if the module allows it. Each Forward on a tape that keeps takes one Backward; a second one is
  // kFailedPrecondition.
  absl::StatusOr<Tensor> Backward(const Tensor& grad_output, Tape& tape);
  absl::StatusOr<TensorList> Backward(TensorList grad_outputs, Tape& tape);

  // The class name as Hugging Face or PyTorch spell it, for messages, and for wrap policies that choose modules by
  // class.
  virtual std::string_view type_name() const = 0;

  // False for a container, which only groups its children; the module that owns the container calls them. Forward and
  // Backward of a container return errors, so hooks belong on its children.
  virtual bool has_forward() const { return true; }

  // Direct children, own parameters and own buffers, in registration order.
  const std::vector<std::pair<std::string, std::unique_ptr<Module>>>& children() const { return children_; }
  const std::vector<NamedParameter>& own_parameters() const { return parameters_; }
  const std::vector<NamedBuffer>& own_buffers() const { return buffers_; }

  // This module ("") and all below it, parents first, with dotted paths: PyTorch's named_modules().
  std::vector<NamedModule> NamedModules();

  // All parameters in the order of NamedModules, duplicates kept: a shared parameter appears under each of its names.
  std::vector<NamedParameter> NamedParameters();

  // Likewise all buffers.
  std::vector<NamedBuffer> NamedBuffers();

  // Sets the fqn of every parameter and buffer below to its first name. Call on the root, once it is built.
  void AssignNames();

  // Gives every parameter memory for data and grad on `device`, in its own dtype: data from its Initializer under
  // `seed`, grad zero. For a module that is not sharded. Blocks.
  absl::Status Materialize(Device& device, uint64_t seed);

  // Makes every floating-point parameter and buffer one of `dtype`, as PyTorch's to(dtype), half() and bfloat16().
  // Values and gradients that have memory are rounded, in new memory on `device`; others will be when they get it.
  // Optimizers keep their states in the parameters' dtype. Before an optimizer is made, and before the module is
  // sharded, which for FullyShard is the first use: a sharded parameter is kFailedPrecondition, by name.
  // kInvalidArgument for a dtype that is not floating-point. An error changes nothing. Blocks.
  absl::Status To(DType dtype, Device& device);

  // At most one set of hooks; null removes them. Not owned: they must outlive the module or be removed.
  void set_hooks(ModuleHooks* hooks) { hooks_ = hooks; }

  // True: Forward keeps only its input for backward, which runs DoForward again (activation checkpointing). This costs
  // one more forward and saves the memory that the layers below would keep. Results are the same in every bit.
  void set_recompute(bool recompute) { recompute_ = recompute; }
  ModuleHooks* hooks() const { return hooks_; }

  // Lives as long as this module, and may be shared with others.
  void set_extension(std::shared_ptr<ModuleExtension> extension) { extension_ = std::move(extension); }
  // Null if the module has no extension.
  ModuleExtension* extension() const { return extension_.get(); }

 protected:
  Module() = default;

  // The layer itself. DoForward saves on the tape what DoBackward needs; DoBackward restores exactly that, in reverse
  // order, even if a gradient is not wanted, because the saves of other modules are below on the same stack. A module
  // of one input and one output overrides the first two, any other the last two.
  virtual absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape);
  virtual absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape);
  virtual absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape);
  virtual absl::StatusOr<TensorList> DoBackwardList(const TensorList& grad_outputs, Tape& tape);

  // The four below register under `name`, which must be unique among the module's own and contain no dot. Call them in
  // the constructor: the order of registration is the order of NamedParameters, and so of flat parameters and of
  // checkpoints.
  std::shared_ptr<Parameter> AddParameter(std::string name, Shape shape, Initializer initializer);

  // Registers a parameter of another module under a further name (tied weights).
  void AddSharedParameter(std::string name, std::shared_ptr<Parameter> parameter);

  // Registers `data`, of the original dtype; the module uses it through the result of this call.
  std::shared_ptr<ModuleBuffer> AddBuffer(std::string name, Tensor data,
                                          BufferPersistence persistence = BufferPersistence::kPersistent);

  template <typename M>
  M* AddChild(std::string name, std::unique_ptr<M> child) {
    M* raw = child.get();
    children_.emplace_back(std::move(name), std::move(child));
    return raw;
  }

 private:
  absl::StatusOr<TensorList> ForwardKeepingInputs(const TensorList& inputs, Tape& tape);
  absl::StatusOr<TensorList> RecomputeAndBackward(const TensorList& grad_outputs, Tape& tape);
  absl::StatusOr<Tensor> OnlyOne(absl::StatusOr<TensorList> tensors, std::string_view what) const;
  absl::Status NotOfOneTensor(std::string_view what, size_t given) const;

  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
  std::vector<NamedParameter> parameters_;
  std::vector<NamedBuffer> buffers_;
  ModuleHooks* hooks_ = nullptr;
  bool recompute_ = false;
  std::shared_ptr<ModuleExtension> extension_;  // last, so that it goes first: it may refer to all of the above
};

}  // namespace fsdp

#endif  // FSDP_NN_MODULE_H_
