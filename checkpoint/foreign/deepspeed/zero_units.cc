// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/zero_units.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_values.h"

namespace fsdp {
namespace {

absl::StatusOr<std::vector<std::vector<int64_t>>> AlignmentOf(const DeepSpeedFiles& files, const ModelStates& model,
                                                              const TorchNode& zero) {
  std::vector<std::vector<int64_t>> alignment;
  const TorchNode* const node = FindValue(zero, "param_alignment_paddings");
  if (node == nullptr || files.is_partitioned) return alignment;
  const std::optional<std::vector<PythonJson>> groups = ItemsOf(node->value());
  bool fits = groups && groups->size() == model.groups.size();
  for (size_t unit = 0; fits && unit < groups->size(); ++unit) {
    FSDP_ASSIGN_OR_RETURN(alignment.emplace_back(), CountsOf((*groups)[unit], "param_alignment_paddings"));
    fits = alignment[unit].size() == model.groups[unit].size();
  }
  if (fits) return alignment;
  return absl::DataLossError("its param_alignment_paddings do not have an entry for each of param_shapes");
}

// Elements of a unit: ZeRO 1 and 2, with alignment paddings; ZeRO 3, of a rank's pieces.
// With a bound on every sum: the shapes come from a file.
absl::StatusOr<int64_t> NumelOf(const DeepSpeedFiles& files, const ModelStates& model, const ZeroUnits& units,
                                size_t unit) {
  const auto world = static_cast<int64_t>(files.optim.size());
  int64_t numel = 0;
  for (size_t i = 0; i < model.groups[unit].size(); ++i) {
    const int64_t own = model.groups[unit][i].second.numel();
    numel += files.is_partitioned ? own / world + (own % world != 0 ? 1 : 0) : own + units.PaddingAfter(unit, i);
    if (numel > ZeroUnits::kMaxTotal) {
      return absl::DataLossError("param_shapes has more elements than a checkpoint can have");
    }
  }
  return numel;
}

}  // namespace

absl::StatusOr<ZeroUnits> ZeroUnits::Place(const DeepSpeedFiles& files, const ModelStates& model,
                                           std::vector<int64_t> parts, const TorchNode& zero) {
  const auto world = static_cast<int64_t>(files.optim.size());
  const int64_t count = files.is_partitioned ? 1 : world;
  ZeroUnits units;
  units.part = std::move(parts);
  FSDP_ASSIGN_OR_RETURN(units.alignment, AlignmentOf(files, model, zero));
  int64_t begin = 0;
  for (size_t unit = 0; unit < model.groups.size(); ++unit) {
    const int64_t part = units.part[unit];
    FSDP_ASSIGN_OR_RETURN(const int64_t numel, NumelOf(files, model, units, unit));
    // A rank that has all elements and no state does not show its padding, and nothing is behind it.
    if (part > (kMaxTotal - begin) / count || numel > kMaxTotal - begin) {
      return absl::DataLossError("its flat tensors have more elements than a checkpoint can have");
    }
    units.begin.push_back(begin);
    units.numel.push_back(numel);
    begin += part * count;
    // Padded to a multiple of twice the ranks.
    const int64_t align = 2 * world;
    const int64_t most = (numel + align - 1) / align * align;
    if (!files.is_partitioned && (part * world < numel || part * world > most)) {
      return absl::DataLossError(absl::StrCat("group ", unit, " has ", part, " elements on each of ", world,
                                              " ranks, but its parameters have ", numel,
                                              " together: it is of another save"));
    }
  }
  units.end = begin;
  if (!files.is_partitioned) return units;
  // A parameter may be in two sub-groups, so only the sum has to be equal.
  int64_t wanted = 0;
  for (const int64_t numel : units.numel) wanted += numel;
  if (wanted == begin) return units;
  return absl::DataLossError(absl::StrCat("its flat tensors have ", begin,
                                          " elements, but the parts of the parameters ", wanted,
                                          " together: it is of another save"));
}

}  // namespace fsdp
