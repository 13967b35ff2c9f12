// SPDX-License-Identifier: Apache-2.0
//
// Every rank gathers the facts of all, so each finds the same first difference and all of them fail alike. Facts are
// sent as lines; a byte that no name contains separates subject and value.
#include "fsdp/fsdp/units/rank_agreement.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/parameter_init.h"
#include "fsdp/fsdp/units/unit.h"

namespace fsdp {
namespace {

constexpr char kSeparator = '\x1f';

// One line of a rank's facts in a message about ranks whose subjects differ as well.
std::string Shown(std::string_view line) {
  if (line.empty()) return "nothing";
  const size_t separator = line.find(kSeparator);
  return absl::StrCat(std::string(line.substr(0, separator)), " (", std::string(line.substr(separator + 1)), ")");
}

absl::Status Difference(std::string_view mine, std::string_view others, size_t rank) {
  constexpr char kBegin[] = "ranks wrap different models: ";
  // Equal subjects: only the values differ, and the message can name the setting.
  const size_t separator = mine.find(kSeparator);
  if (separator != std::string_view::npos && others.substr(0, separator + 1) == mine.substr(0, separator + 1)) {
    return absl::FailedPreconditionError(absl::StrCat(kBegin, std::string(mine.substr(0, separator)), " is ",
                                                      std::string(mine.substr(separator + 1)), " on rank 0 and ",
                                                      std::string(others.substr(separator + 1)), " on rank ", rank,
                                                      ": expected the same on all ranks"));
  }
  return absl::FailedPreconditionError(absl::StrCat(kBegin, "rank 0 has ", Shown(mine), " and rank ", rank, " has ",
                                                    Shown(others), ": expected the same on all ranks"));
}

std::string_view LayoutName(LayoutKind layout) {
  switch (layout) {
    case LayoutKind::kFlat:
      return "flat";
    case LayoutKind::kFlatAligned:
      return "flat_aligned";
    case LayoutKind::kDim0:
      break;
  }
  return "dim0";
}

std::string OffloadName(const OffloadPolicy& offload) {
  return !offload.has_value() ? "none" : offload->pin_memory ? "pinned" : "pageable";
}

// The facts that decide the collectives of a unit and the bytes that they move.
void AddUnit(const Unit& unit, RankAgreement& agreement) {
  const auto add = [&](const char* what, std::string value) {
    agreement.Add(absl::StrCat(what, " of unit ", unit.display_name()), std::move(value));
  };
  const UnitSettings& settings = unit.settings;
  // The strategy as carried out, not as requested: it decides the collectives.
  add("sharding_strategy", std::string(ShardingStrategyName(unit.strategy)));
  add("layout", std::string(LayoutName(settings.layout)));
  add("offload", OffloadName(settings.offload));
  add("dtypes",
      absl::StrCat(std::string(DTypeName(unit.dtype)), ", compute ", std::string(DTypeName(unit.compute_dtype)),
                   ", reduce ", std::string(DTypeName(unit.reduce_dtype))));
  add("full_precision_in_eval", TrueOrFalse(settings.full_precision_in_eval));
  add("keep_low_precision_grads", TrueOrFalse(settings.keep_low_precision_grads));
  add("activation_checkpointing", TrueOrFalse(settings.activation_checkpointing));
  add("ranks after forward", absl::StrCat(settings.post_forward_group_size));
  const std::optional<BackwardPrefetch>& order = settings.backward_prefetch;
  add("backward_prefetch", order.has_value() ? std::string(BackwardPrefetchName(*order)) : "the model's");
  const std::optional<bool>& ahead = settings.forward_prefetch;
  add("forward_prefetch", ahead.has_value() ? TrueOrFalse(*ahead) : "the model's");
  add("process_group", settings.process_group.has_value() ? "its own" : "the model's");
  add("shard group", absl::StrCat(unit.groups.shard_world_size(), " ranks"));
  for (const auto& parameter : unit.parameters) {
    agreement.Add(absl::StrCat("parameter \"", parameter->fqn, "\""),
                  absl::StrCat(std::string(DTypeName(parameter->dtype)), " ", parameter->shape.ToString(),
                               parameter->part ? absl::StrCat(" of ", parameter->part->whole.ToString()) : "",
                               parameter->requires_grad ? "" : ", frozen"));
  }
  for (const ShardLayout::Entry& entry : unit.layout.parameters()) {
    agreement.Add(absl::StrCat("sharded dimension of parameter \"", entry.fqn, "\""), absl::StrCat(entry.dim));
  }
}

}  // namespace

void RankAgreement::Add(std::string_view subject, std::string value) {
  facts_.emplace_back(std::string(subject), std::move(value));
}

absl::Status RankAgreement::Check(const ShardGroups& groups) const {
  std::string lines;
  for (const auto& [subject, value] : facts_) {
    absl::StrAppend(&lines, subject, std::string(1, kSeparator), value, "\n");
  }
  // The lists are equal on nearly every run, so they are sent whole and compared as strings first.
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllRanks(groups).AllGatherObject(lines));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> first = absl::StrSplit(all[0], '\n'), other = absl::StrSplit(all[rank], '\n');
    size_t line = 0;
    while (line < std::min(first.size(), other.size()) && first[line] == other[line]) ++line;
    return Difference(line < first.size() ? first[line] : "", line < other.size() ? other[line] : "", rank);
  }
  return absl::OkStatus();
}

// With sync_module_states all ranks get rank 0's values, whatever their seeds.
RankAgreement RankAgreement::Of(const UnitStore& store, const ModelSettings& settings, const ParameterInit& init) {
  RankAgreement agreement = settings.agreement;
  agreement.Add("sync_module_states", TrueOrFalse(init.sync_module_states));
  if (!init.sync_module_states) agreement.Add("init_seed", absl::StrCat(init.seed));
  for (const auto& unit : store.units()) AddUnit(*unit, agreement);
  // Without parameters of their own, but their recomputation gathers the units inside.
  for (const BareModule& bare : store.bare_modules()) {
    agreement.Add(absl::StrCat("activation_checkpointing of module ", bare.name),
                  TrueOrFalse(bare.settings.activation_checkpointing));
  }
  return agreement;
}

}  // namespace fsdp
