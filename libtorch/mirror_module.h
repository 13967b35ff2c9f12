// SPDX-License-Identifier: Apache-2.0
//
// MirrorModule: a torch::nn::Module, or a module of TorchScript, as fsdp/ sees one: the same tree with the same names,
// parameters and buffers, without a forward. What fsdp/ does with modules (wrap policies, layouts, state dicts,
// checkpoints) so works on modules of LibTorch; sharded_module.h runs the hooks that a forward would run.
#ifndef FSDP_LIBTORCH_MIRROR_MODULE_H_
#define FSDP_LIBTORCH_MIRROR_MODULE_H_

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"

namespace torch::nn {
class Module;
}

namespace fsdp {

// The input of MirrorModule::Create.
struct ModuleTree {
  std::string type_name;                        // "Linear"
  const torch::nn::Module* original = nullptr;  // null for a module of TorchScript
  std::vector<std::pair<std::string, at::Tensor>> parameters, buffers;
  std::vector<std::pair<std::string, ModuleTree>> children;
};

// One parameter or buffer of both trees.
struct MirroredParameter {
  std::shared_ptr<Parameter> mirror;
  at::Tensor tensor;
};
struct MirroredBuffer {
  std::shared_ptr<ModuleBuffer> mirror;
  at::Tensor tensor;
};

class MirrorModule final : public Module {
 public:
  // Parameters and buffers refer to the tensors' memory, or to a contiguous copy; one that has several names is shared.
  // requires_grad is what it is now. kInvalidArgument, with the full name, for a tensor that DType has no dtype for, or
  // that is sparse, quantized, or without memory (meta).
  static absl::StatusOr<std::unique_ptr<MirrorModule>> Create(const ModuleTree& tree);

  std::string_view type_name() const override { return type_name_; }
  // False for lists and dicts of modules and parameters, which FullyShard and policies leave out.
  bool has_forward() const override;

  // The module that this mirrors, for its class; null for one of TorchScript.
  const torch::nn::Module* original() const { return original_; }

  // The module at this path below this one; null if there is no such module.
  MirrorModule* Find(std::string_view fqn);

  // The tensors of the whole tree, each once. Empty except in the root that Create returned.
  const std::vector<MirroredParameter>& mirrored_parameters() const { return mirrored_parameters_; }
  const std::vector<MirroredBuffer>& mirrored_buffers() const { return mirrored_buffers_; }

 private:
  MirrorModule(std::string type_name, const torch::nn::Module* original)
      : type_name_(std::move(type_name)), original_(original) {}
  absl::Status Fill(const ModuleTree& tree, const std::string& path, MirrorModule& root);
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  const std::string type_name_;
  const torch::nn::Module* const original_;
  std::vector<MirroredParameter> mirrored_parameters_;
  std::vector<MirroredBuffer> mirrored_buffers_;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_MIRROR_MODULE_H_
