// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/mirror_module.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/libtorch/stream_order.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {
namespace {

// Types without a forward.
constexpr std::array<std::string_view, 4> kContainers = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"};

template <typename Mirrored>
const Mirrored* FindTensor(const std::vector<Mirrored>& all, const at::Tensor& tensor) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Mirrored& m) { return m.tensor.is_same(tensor); });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MirrorModule>> MirrorModule::Create(const ModuleTree& tree) {
  std::unique_ptr<MirrorModule> root(new MirrorModule(tree.type_name, tree.original));
  FSDP_RETURN_IF_ERROR(root->Fill(tree, "", *root));
  // fsdp/ reads the values without LibTorch's streams: wait for each device, once.
  std::vector<c10::Device> devices;
  for (const MirroredParameter& parameter : root->mirrored_parameters_) devices.push_back(parameter.tensor.device());
  for (const MirroredBuffer& buffer : root->mirrored_buffers_) devices.push_back(buffer.tensor.device());
  for (auto device = devices.begin(); device != devices.end(); ++device) {
    if (std::find(devices.begin(), device, *device) == device) FSDP_RETURN_IF_ERROR(AwaitLibTorch(*device));
  }
  return root;
}

bool MirrorModule::has_forward() const {
  return std::find(kContainers.begin(), kContainers.end(), type_name_) == kContainers.end();
}

MirrorModule* MirrorModule::Find(std::string_view fqn) {
  MirrorModule* module = this;
  if (fqn.empty()) return module;
  // Names of children contain no dots.
  const std::vector<std::string> path = absl::StrSplit(std::string(fqn), '.');
  for (const std::string& part : path) {
    const auto& all = module->children();
    const auto child = std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.first == part; });
    if (child == all.end()) return nullptr;
    module = static_cast<MirrorModule*>(child->second.get());
  }
  return module;
}

absl::Status MirrorModule::Fill(const ModuleTree& tree, const std::string& path, MirrorModule& root) {
  for (const auto& [name, tensor] : tree.parameters) {
    if (const MirroredParameter* seen = FindTensor(root.mirrored_parameters_, tensor)) {
      // Another name of a tensor that is mirrored already: both names share the Parameter.
      AddSharedParameter(name, seen->mirror);
      continue;
    }
    absl::StatusOr<Tensor> values = ViewOf(tensor);
    FSDP_RETURN_IF_ERROR(Annotate(values.status(), absl::StrCat("parameter \"", path, name, "\"")));
    const std::shared_ptr<Parameter> mirror = AddParameter(name, values->shape(), Initializer());
    mirror->dtype = values->dtype();
    // No initializer runs: the values are the module's own.
    mirror->requires_grad = tensor.requires_grad();
    mirror->data = *std::move(values);
    root.mirrored_parameters_.push_back({mirror, tensor});
  }
  for (const auto& [name, tensor] : tree.buffers) {
    absl::StatusOr<Tensor> values = ViewOf(tensor);
    FSDP_RETURN_IF_ERROR(Annotate(values.status(), absl::StrCat("buffer \"", path, name, "\"")));
    root.mirrored_buffers_.push_back({AddBuffer(name, *std::move(values)), tensor});
  }
  // After the parameters of the module itself, as in named_parameters(), so that shared ones get the same first name.
  for (const auto& [name, child] : tree.children) {
    std::unique_ptr<MirrorModule> module(new MirrorModule(child.type_name, child.original));
    FSDP_RETURN_IF_ERROR(module->Fill(child, absl::StrCat(path, name, "."), root));
    AddChild(name, std::move(module));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> MirrorModule::DoForward(const Tensor&, Tape&) {
  return absl::UnimplementedError(
      absl::StrCat("forward of the mirror of a ", type_name_, ": call the module's own within ShardedModule::Forward"));
}

absl::StatusOr<Tensor> MirrorModule::DoBackward(const Tensor&, Tape&) {
  return absl::UnimplementedError(
      absl::StrCat("backward of the mirror of a ", type_name_, ": call at::Tensor::backward of the loss"));
}

}  // namespace fsdp
