// SPDX-License-Identifier: Apache-2.0
//
// The values of DeepSpeed's dicts that are not tensors, each with its place in errors. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_VALUES_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_VALUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/python_json.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// A parameter and its shape, in the order of the file.
using NamedShapes = std::vector<std::pair<std::string, Shape>>;

// Null for a missing member and for None.
const TorchNode* FindValue(const TorchNode& dict, const std::string& name);

// The member `name`; nullopt without it. kDataLoss for another kind of value, or one that is negative.
absl::StatusOr<std::optional<int64_t>> FindCount(const TorchNode& dict, const std::string& name);

// The members of a list or tuple; nullopt for another value.
std::optional<std::vector<PythonJson>> ItemsOf(const PythonJson& value);

// A dict from names to torch.Sizes. kDataLoss, with `what`, for other values.
absl::StatusOr<NamedShapes> ShapesOf(const PythonJson& value, const std::string& what);

// The member `name`, a list of such dicts; empty without it.
absl::StatusOr<std::vector<NamedShapes>> FindShapeDicts(const TorchNode& dict, const std::string& name);

// The member `name`, a list of integers that are not negative, or one such integer. nullopt without it.
absl::StatusOr<std::optional<std::vector<int64_t>>> FindCounts(const TorchNode& dict, const std::string& name);
absl::StatusOr<std::vector<int64_t>> CountsOf(const PythonJson& value, const std::string& what);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_VALUES_H_
