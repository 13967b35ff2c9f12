// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/tree_place.h"

#include "absl/strings/str_cat.h"

namespace fsdp {

TreePlace TreePlace::Inside(const std::string& key) const {
  const TorchBranch* const own = branch == nullptr ? nullptr : branch->Find(key);
  const bool has_role = own != nullptr && own->role != Role::kNone;
  TreePlace inner = {.branch = own, .role = has_role ? own->role : role};
  if (inner.role == Role::kTopModel && !has_role) inner.role = Role::kNone;  // only its direct tensors are a model
  inner.path = path.empty() ? key : absl::StrCat(path, ".", key);
  inner.depth = depth + 1;
  inner.model = has_role ? own : model;
  if (!has_role) inner.name = name.empty() ? key : absl::StrCat(name, ".", key);
  return inner;
}

TreePlace TreePlace::OfTensor(const std::string& key) const {
  TreePlace inner = Inside(key);
  if (role == Role::kTopModel && inner.role == Role::kNone) inner.role = Role::kModel;
  if (inner.name.empty()) inner.name = key;  // a model of one tensor
  return inner;
}

}  // namespace fsdp
