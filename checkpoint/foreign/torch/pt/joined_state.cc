// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/pt/joined_state.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/checkpoint/foreign/torch/state/flat_state.h"
#include "fsdp/checkpoint/source/flat_layout.h"

namespace fsdp {
namespace {

std::optional<Shape> ParameterShape(const StateDict& contents, const std::string& fqn,
                                    const TensorSourceOptions& options) {
  if (const ShardedTensor* const tensor = contents.FindTensor(StateKey::Model(fqn))) return tensor->shape;
  if (!options.flat_layout) return std::nullopt;
  const auto& parameters = options.flat_layout->parameters;
  const auto at = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) { return p.fqn == fqn; });
  return at == parameters.end() ? std::nullopt : std::make_optional(at->shape);
}

}  // namespace

absl::Status FitJoinedState(int ranks, const TensorSourceOptions& options, const TensorList& tensors,
                            TorchState& state) {
  std::vector<std::pair<StateKey, ShardedTensor>> reshaped;
  for (const auto& [key, value] : state.contents.entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kOptimState) continue;
    const TorchTensorPart* const part = (*state.FindLeaf(key))->tensor_part();
    if (part == nullptr || tensor->shape.rank() != 1) continue;
    const bool is_joined = tensors[part->tensor].size() > 1;
    const std::optional<Shape> wanted = ParameterShape(state.contents, key.fqn, options);
    const int64_t numel = tensor->shape.numel();
    const bool fits = wanted && numel == wanted->numel();
    if (fits && is_joined && tensor->shape != *wanted) reshaped.emplace_back(key, *tensor).second.shape = *wanted;
    const bool is_shard = wanted && !fits && numel * ranks == wanted->numel();
    if (is_joined ? fits : !is_shard) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Quote(key.ToString()), " has ", numel, " elements in ", is_joined ? "all files together" : "each file",
        wanted ? absl::StrCat(", but its parameter has ", wanted->numel())
               : absl::StrCat(", and how many its parameter has is not in the files; ", kGiveFlatLayout)));
  }
  for (auto& [key, tensor] : reshaped) state.contents.Set(key, std::move(tensor));
  return absl::OkStatus();
}

}  // namespace fsdp
