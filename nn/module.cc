// SPDX-License-Identifier: Apache-2.0
//
// Forward and Backward around the layer's own code, and the walks over the tree of modules. Hooks see a module
// from outside: PreForward before anything of the module runs, PostForward after all of it, and likewise backward, so
// that a module's parameters need to be unsharded only between the two.
//
// Activation checkpointing (set_recompute) is here too, because it is the same for every layer:
//
//   forward    save the inputs on the tape; run DoForward on a tape that keeps nothing
//   backward   restore the inputs; run DoForward again on a new tape that keeps; run DoBackward on that tape
//
// Both functions run inside the hooks of their direction, so recomputation in backward finds the parameters unsharded
// by PreBackward, and hooks of the modules below run again as in a forward. Results have the same bits, since the same
// kernels run on the same values.
#include "fsdp/nn/module.h"

#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

void CollectModules(const std::string& path, Module* module, std::vector<Module::NamedModule>& out) {
  out.emplace_back(path, module);
  for (const auto& [name, child] : module->children()) {
    CollectModules(Join(path, name), child.get(), out);
  }
}

}  // namespace

absl::StatusOr<TensorList> Module::Forward(TensorList inputs, Tape& tape) {
  // Hooks see the tensors that the layer gets and returns, and may replace them (casts). Recomputation stays inside the
  // hooks, which are called once.
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PreForward(*this, absl::MakeSpan(inputs), tape));
  FSDP_ASSIGN_OR_RETURN(TensorList outputs,
                        recompute_ ? ForwardKeepingInputs(inputs, tape) : DoForwardList(inputs, tape));
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PostForward(*this, absl::MakeSpan(outputs), tape));
  return outputs;
}

absl::StatusOr<TensorList> Module::Backward(TensorList grad_outputs, Tape& tape) {
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PreBackward(*this, absl::MakeSpan(grad_outputs), tape));
  FSDP_ASSIGN_OR_RETURN(TensorList grad_inputs,
                        recompute_ ? RecomputeAndBackward(grad_outputs, tape) : DoBackwardList(grad_outputs, tape));
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PostBackward(*this, absl::MakeSpan(grad_inputs), tape));
  return grad_inputs;
}

absl::StatusOr<Tensor> Module::Forward(const Tensor& input, Tape& tape) {
  return OnlyOne(Forward(TensorList{input}, tape), "forward");
}

absl::StatusOr<Tensor> Module::Backward(const Tensor& grad_output, Tape& tape) {
  return OnlyOne(Backward(TensorList{grad_output}, tape), "backward");
}

absl::StatusOr<TensorList> Module::DoForwardList(const TensorList& inputs, Tape& tape) {
  if (inputs.size() != 1) return NotOfOneTensor("forward takes 1 tensor and was given", inputs.size());
  FSDP_ASSIGN_OR_RETURN(Tensor output, DoForward(inputs.front(), tape));
  return TensorList{std::move(output)};
}

absl::StatusOr<TensorList> Module::DoBackwardList(const TensorList& grad_outputs, Tape& tape) {
  if (grad_outputs.size() != 1) return NotOfOneTensor("backward takes 1 tensor and was given", grad_outputs.size());
  FSDP_ASSIGN_OR_RETURN(Tensor grad_input, DoBackward(grad_outputs.front(), tape));
  return TensorList{std::move(grad_input)};
}

// Not pure: a module overrides these two or the two list forms.
absl::StatusOr<Tensor> Module::DoForward(const Tensor&, Tape&) {
  return absl::UnimplementedError(absl::StrCat(std::string(type_name()), " has neither DoForward nor DoForwardList"));
}

absl::StatusOr<Tensor> Module::DoBackward(const Tensor&, Tape&) {
  return absl::UnimplementedError(absl::StrCat(std::string(type_name()), " has neither DoBackward nor DoBackwardList"));
}

absl::StatusOr<Tensor> Module::OnlyOne(absl::StatusOr<TensorList> tensors, std::string_view what) const {
  FSDP_RETURN_IF_ERROR(tensors.status());
  if (tensors->size() != 1) return NotOfOneTensor(absl::StrCat(std::string(what), " gives"), tensors->size());
  return std::move(tensors->front());
}

absl::Status Module::NotOfOneTensor(std::string_view what, size_t given) const {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(type_name()), ": ", std::string(what), " ", given,
                   given == 1 ? "" : "; a module of several is called with a TensorList of as many as it takes"));
}

absl::StatusOr<TensorList> Module::ForwardKeepingInputs(const TensorList& inputs, Tape& tape) {
  tape.SaveForReplay(inputs);
  // Children save nothing on the inner tape, so that only the inputs are kept.
  Tape forgetful = tape.Inner();
  return DoForwardList(inputs, forgetful);
}

absl::StatusOr<TensorList> Module::RecomputeAndBackward(const TensorList& grad_outputs, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tape::Replay replay, tape.RestoreForReplay());
  // DoForwardList and not Forward: this module's hooks have run; its children's run again.
  FSDP_RETURN_IF_ERROR(DoForwardList(replay.inputs, replay.tape).status());
  return DoBackwardList(grad_outputs, replay.tape);
}

std::vector<Module::NamedModule> Module::NamedModules() {
  std::vector<NamedModule> modules;
  CollectModules("", this, modules);
  return modules;
}

std::vector<Module::NamedParameter> Module::NamedParameters() {
  std::vector<NamedParameter> parameters;
  for (const auto& [path, module] : NamedModules()) {
    for (const auto& [name, parameter] : module->own_parameters()) {
      parameters.emplace_back(Join(path, name), parameter);
    }
  }
  return parameters;
}

std::vector<Module::NamedBuffer> Module::NamedBuffers() {
  std::vector<NamedBuffer> buffers;
  for (const auto& [path, module] : NamedModules()) {
    for (const auto& [name, buffer] : module->own_buffers()) buffers.emplace_back(Join(path, name), buffer);
  }
  return buffers;
}

// A parameter or buffer that is shared keeps the name under which it is met first; the other names are aliases.
void Module::AssignNames() {
  std::set<const void*> named;
  for (const auto& [name, parameter] : NamedParameters()) {
    if (named.insert(parameter.get()).second) parameter->fqn = name;
  }
  for (const auto& [name, buffer] : NamedBuffers()) {
    if (named.insert(buffer.get()).second) buffer->fqn = name;
  }
}

absl::Status Module::Materialize(Device& device, uint64_t seed) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.CreateStream("materialize"));
  // Shared parameters appear once under each name and must be filled once.
  std::set<const Parameter*> done;
  for (const auto& [name, parameter] : NamedParameters()) {
    if (done.insert(parameter.get()).second)
      FSDP_RETURN_IF_ERROR(MaterializeParameter(*parameter, device, seed, *stream));
  }
  return stream->Synchronize();
}

std::shared_ptr<Parameter> Module::AddParameter(std::string name, Shape shape, Initializer initializer) {
  auto parameter = std::make_shared<Parameter>();
  parameter->fqn = name;  // until AssignNames
  parameter->shape = std::move(shape);
  parameter->initializer = initializer;
  parameters_.emplace_back(std::move(name), parameter);
  return parameter;
}

void Module::AddSharedParameter(std::string name, std::shared_ptr<Parameter> parameter) {
  parameters_.emplace_back(std::move(name), std::move(parameter));
}

std::shared_ptr<ModuleBuffer> Module::AddBuffer(std::string name, Tensor data, BufferPersistence persistence) {
  auto buffer = std::make_shared<ModuleBuffer>();
  buffer->fqn = name;  // until AssignNames
  buffer->dtype = data.dtype();
  buffer->persistence = persistence;
  buffer->data = std::move(data);
  buffers_.emplace_back(std::move(name), buffer);
  return buffer;
}

}  // namespace fsdp
