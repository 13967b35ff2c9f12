// SPDX-License-Identifier: Apache-2.0
//
// FSDP1 keeps optimizer states in the layout of the parameters: "exp_avg" of a unit is flat with the same offsets as
// its flat parameter. So one table of offsets, by parameter name, serves every kind of value.
#include "fsdp/checkpoint/native/format/flat_place.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/source/tensor_name.h"

namespace fsdp {

FlatPlaces::FlatPlaces(const std::vector<FlatUnitLayout>& units) {
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const FlatUnitLayout::Entry& entry : units[unit].parameters) {
      parameters_[entry.fqn] = {{static_cast<int>(unit), entry.offset}, entry.numel};
    }
  }
}

std::optional<FlatPlace> FlatPlaces::Find(const StateKey& key, const Shape& shape) const {
  const bool is_optim = key.section == StateKey::Section::kOptimState;
  if (key.section != StateKey::Section::kModel && !(is_optim && shape.rank() > 0)) return std::nullopt;
  const auto it = parameters_.find(key.fqn);
  if (it == parameters_.end() || it->second.numel != shape.numel()) return std::nullopt;
  return it->second.place;
}

std::string FlatDatasetPath(int unit, const StateKey& key, DType dtype) {
  const std::string kind = key.section == StateKey::Section::kOptimState
                               ? absl::StrCat("optim/", EscapeLinkName(key.state))
                               : std::string("model");
  return absl::StrCat("/flat/", unit, "/", kind, "/", std::string(DTypeName(dtype)));
}

// Parameters of one dtype follow each other, since a flat parameter has one dtype and each dtype becomes a dataset of
// its own. A stable sort keeps the model's order within a dtype.
FlatUnitLayout OneFlatUnit(const StateDict& state) {
  std::vector<std::pair<DType, FlatUnitLayout::Entry>> parameters;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr || key.section != StateKey::Section::kModel) continue;
    parameters.push_back({tensor->dtype, {key.fqn, 0, tensor->shape.numel()}});
  }
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  FlatUnitLayout unit;
  for (auto& [dtype, entry] : parameters) {
    entry.offset = unit.unsharded_numel;
    unit.unsharded_numel += entry.numel;
    unit.parameters.push_back(std::move(entry));
  }
  return unit;
}

}  // namespace fsdp
