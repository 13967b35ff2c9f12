// SPDX-License-Identifier: Apache-2.0
//
// Forward and Backward around the layer's own code, and the walks over the tree of modules. Hooks see a module
// from outside: PreForward before anything of the module runs, PostForward after all of it, and likewise backward, so
// that a module's parameters need to be unsharded only between the two.
//
// Activation checkpointing (set_recompute) is here too, because it is the same for every layer:
//
//   forward    save the input on the tape; run DoForward on a tape that keeps nothing
//   backward   restore the input; run DoForward again on a new tape that keeps; run DoBackward on that tape
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

absl::StatusOr<Tensor> Module::Forward(const Tensor& input, Tape& tape) {
  Tensor x = input;
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PreForward(*this, x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor output, recompute_ ? ForwardKeepingInput(x, tape) : DoForward(x, tape));
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PostForward(*this, output, tape));
  return output;
}

absl::StatusOr<Tensor> Module::Backward(const Tensor& grad_output, Tape& tape) {
  Tensor g = grad_output;
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PreBackward(*this, g, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_input, recompute_ ? RecomputeAndBackward(g, tape) : DoBackward(g, tape));
  if (hooks_ != nullptr) FSDP_RETURN_IF_ERROR(hooks_->PostBackward(*this, grad_input, tape));
  return grad_input;
}

absl::StatusOr<Tensor> Module::ForwardKeepingInput(const Tensor& input, Tape& tape) {
  tape.Save(input);
  Tape forgetful(tape.stream(), tape.ops(), /*keep_for_backward=*/false);
  return DoForward(input, forgetful);
}

absl::StatusOr<Tensor> Module::RecomputeAndBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(const Tensor input, tape.Restore());
  Tape again(tape.stream(), tape.ops());
  FSDP_RETURN_IF_ERROR(DoForward(input, again).status());
  return DoBackward(grad_output, again);
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
