// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/deepspeed_part.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

using Kind = TorchNode::Kind;

bool IsThere(const TorchNode& dict, const std::string& name) {
  const TorchNode* const node = dict.Find(name);
  return node != nullptr && !(node->kind() == Kind::kValue && node->value().is_null());
}

absl::Status Refused(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("it is one file of a DeepSpeed checkpoint, ", what,
                                                 ": give the directory with the files of all ranks"));
}

}  // namespace

absl::StatusOr<std::string> WordOnDeepSpeed(const TorchNode& root, const TorchLeafTypes& types) {
  if (!root.is_branch() || root.is_list || !IsThere(root, "ds_version")) return "";
  const TorchNode* const optimizer = root.Find("optimizer_state_dict");
  if (optimizer != nullptr && IsThere(*optimizer, "partition_count")) {
    return Refused("with one rank's part of the parameters and of the optimizer's state");
  }
  const TorchNode* const module = root.Find("module");
  if (module == nullptr || !module->is_branch() || !IsThere(root, "param_shapes")) return "";
  const auto unfilled =
      std::find_if(module->members().begin(), module->members().end(), [&](const TorchNode::Member& member) {
        return member.second.kind() == Kind::kTensor && types[member.second.tensor()].shape == Shape({0});
      });
  if (unfilled != module->members().end()) {
    return Refused(absl::StrCat("in which parameters such as ", Quote(unfilled->first), " have no elements"));
  }
  return "the float32 parameters and the optimizer's state (in the other files of this DeepSpeed checkpoint: give the "
         "directory)";
}

}  // namespace fsdp
