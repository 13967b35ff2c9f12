// SPDX-License-Identifier: Apache-2.0
//
// ModuleList: children named "0", "1", ..., as torch.nn.ModuleList. The module that owns the list calls the children
// one by one; the list has no forward.
#ifndef FSDP_NN_MODULE_LIST_H_
#define FSDP_NN_MODULE_LIST_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Append the children in the constructor of the module that owns the list, before names are assigned.
class ModuleList final : public Module {
 public:
  // FullyShard refuses it, since hooks have no forward to surround: apply FullyShard to the children.
  std::string_view type_name() const override { return "ModuleList"; }
  bool has_forward() const override { return false; }

  // Adds a child named by its index.
  void Append(std::unique_ptr<Module> child) { AddChild(std::to_string(children().size()), std::move(child)); }

 private:
  // Each returns kUnimplemented.
  absl::StatusOr<Tensor> DoForward(const Tensor&, Tape&) override {
    return absl::UnimplementedError("a ModuleList has no forward: call its children");
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor&, Tape&) override {
    return absl::UnimplementedError("a ModuleList has no backward: call its children");
  }
};

}  // namespace fsdp

#endif  // FSDP_NN_MODULE_LIST_H_
