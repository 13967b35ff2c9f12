// SPDX-License-Identifier: Apache-2.0
//
// Forward walks the visits in order, backward in reverse: forward's exit from a unit is backward's entry. At each entry
// the builder adds
//
//   all-gather of the unit, unless it is unsharded        the unit cannot compute without it
//   all-gather of the next unit (prefetch)                issued before the compute, so that both overlap
//   the compute
//
// and at each exit the reshard, then, in backward, the reduction. Under "prefetch after" (kBackwardPost), the
// all-gather of the next unit is between reshard and reduction: it takes the slot that the reshard freed, and is not
// queued behind the reduction. The builder tracks which units are unsharded, so no unit is gathered twice or resharded
// twice, whatever state earlier passes left.
//
// A unit that recomputes runs its forward again at its entry in backward, and the units inside run theirs: each is
// gathered and resharded as in forward, and gathered again for its own backward. PyTorch's FSDP units do so, since a
// checkpointed module calls their hooks:
//
//   recompute a | all_gather b | recompute b | reshard b | backward a | all_gather b | backward b | ...
#include "fsdp/fsdp/schedule/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

using Kind = ScheduleEvent::Kind;

const char* EventName(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kForward:
      return "forward";
    case Kind::kReshard:
      return "reshard";
    case Kind::kReshardToGroup:
      return "reshard_to_group";
    case Kind::kRecompute:
      return "recompute";
    case Kind::kBackward:
      return "backward";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kStoreGradient:
      return "store_gradient";
    case Kind::kStep:
      return "step";
  }
  return "unknown";
}

bool IsReshard(const ScheduleEvent& event) {
  return event.kind == Kind::kReshard || event.kind == Kind::kReshardToGroup;
}

// Builds a schedule event by event, tracking which units are unsharded.
class Builder {
 public:
  Builder(const std::vector<bool>& unsharded, const ScheduleOptions& options)
      : unsharded_(unsharded), options_(options) {}

  // All-gathers `unit` unless it is unsharded already. A unit that is not sharded at all never is gathered.
  void Unshard(int unit) {
    if (unsharded_[unit] || !options_.units[unit].sharded) return;
    Add(Kind::kAllGather, unit);
    unsharded_[unit] = true;
  }

  void Reshard(int unit, Kind kind = Kind::kReshard) {
    if (!unsharded_[unit]) return;
    Add(kind, unit);
    unsharded_[unit] = false;
  }

  // All-gathers units ahead of their time: the listed ones, or `next` if no units are listed.
  void Prefetch(const std::optional<std::vector<int>>& listed, int next) {
    if (listed.has_value()) {
      for (const int unit : *listed) Unshard(unit);
    } else if (next >= 0) {
      Unshard(next);
    }
  }

  void Add(Kind kind, int unit) { schedule_.push_back({kind, unit}); }

  Schedule Take() { return std::move(schedule_); }

 private:
  std::vector<bool> unsharded_;
  const ScheduleOptions& options_;
  Schedule schedule_;
};

// Units with parameters by first entry (`enter`) or exit, each once.
std::vector<int> OrderOf(absl::Span<const UnitVisit> visits, bool enter, const ScheduleOptions& options) {
  std::vector<int> order;
  for (const UnitVisit& visit : visits) {
    if (visit.enter == enter && options.units[visit.unit].has_parameters &&
        std::find(order.begin(), order.end(), visit.unit) == order.end()) {
      order.push_back(visit.unit);
    }
  }
  return order;
}

// The unit after `unit` in `order`, or -1.
int Following(const std::vector<int>& order, int unit) {
  const auto at = std::find(order.begin(), order.end(), unit);
  return at == order.end() || at + 1 == order.end() ? -1 : *(at + 1);
}

// A unit whose backward does not read its parameters still needs them if backward runs its forward again.
bool NeedsParametersInBackward(const UnitTraits& unit) { return unit.unshard_in_backward || unit.recompute; }

BackwardPrefetch BackwardOrder(int unit, const ScheduleOptions& options) {
  return options.units[unit].backward_prefetch_order.value_or(options.backward_prefetch);
}

// The events that end a unit's forward. An evaluation keeps what training keeps, as in PyTorch: the next evaluation
// does not gather it.
void FinishForward(int unit, const ScheduleOptions& options, Builder& builder) {
  const UnitTraits& traits = options.units[unit];
  if (traits.reshard_after_forward) {
    builder.Reshard(unit, traits.reshard_to_group ? Kind::kReshardToGroup : Kind::kReshard);
  }
}

// The events that end a unit's backward: reshard, prefetch, reduction.
void FinishBackward(int unit, int next, const ScheduleOptions& options, Builder& builder) {
  const UnitTraits& traits = options.units[unit];
  if (traits.ReshardsAfterBackward()) builder.Reshard(unit);
  if (BackwardOrder(unit, options) == BackwardPrefetch::kBackwardPost && next >= 0) builder.Unshard(next);
  if (!traits.sync || !traits.trainable) return;
  if (traits.sharded) builder.Add(Kind::kReduceScatter, unit);
  if (traits.replicated && (traits.all_reduce || !traits.sharded)) builder.Add(Kind::kAllReduce, unit);
  if (!traits.sharded && !traits.replicated) builder.Add(Kind::kStoreGradient, unit);
}

// The visits of forward inside the unit that it left with visits[exit].
absl::Span<const UnitVisit> Inside(absl::Span<const UnitVisit> visits, size_t exit) {
  int depth = 0;
  for (size_t at = exit + 1; at-- > 0;) {
    if (visits[at].unit != visits[exit].unit) continue;
    depth += visits[at].enter ? -1 : 1;
    if (depth == 0) return visits.subspan(at + 1, exit - at - 1);
  }
  return {};
}

void Recompute(absl::Span<const UnitVisit> visits, const ScheduleOptions& options, Builder& builder) {
  for (const UnitVisit& visit : visits) {
    if (visit.enter) {
      builder.Unshard(visit.unit);
      builder.Add(Kind::kRecompute, visit.unit);
    } else {
      FinishForward(visit.unit, options, builder);
    }
  }
}

}  // namespace

UnitTraits UnitTraits::Of(ShardingStrategy strategy, bool is_root) {
  UnitTraits traits;
  traits.sharded = strategy != ShardingStrategy::kNoShard;
  traits.replicated = strategy == ShardingStrategy::kNoShard || IsHybrid(strategy);
  traits.reshard_after_backward = ReshardsAfterForward(strategy);
  traits.reshard_after_forward = traits.reshard_after_backward && !is_root;
  return traits;
}

Schedule ForwardSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                         const ScheduleOptions& options) {
  Builder builder(unsharded, options);
  const std::vector<int> order = OrderOf(visits, /*enter=*/true, options);
  for (const UnitVisit& visit : visits) {
    if (!visit.enter) {
      FinishForward(visit.unit, options, builder);
      continue;
    }
    const UnitTraits& traits = options.units[visit.unit];
    builder.Unshard(visit.unit);
    builder.Prefetch(traits.forward_prefetch, traits.forward_prefetch_next.value_or(options.forward_prefetch)
                                                  ? Following(order, visit.unit)
                                                  : -1);
    builder.Add(Kind::kForward, visit.unit);
  }
  return builder.Take();
}

Schedule RecomputeSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                           const ScheduleOptions& options) {
  Builder builder(unsharded, options);
  Recompute(visits, options, builder);
  return builder.Take();
}

Schedule BackwardSchedule(absl::Span<const UnitVisit> visits, const std::vector<bool>& unsharded,
                          const ScheduleOptions& options) {
  Builder builder(unsharded, options);
  // Backward enters units in the reverse of the order in which forward left them; the next one to enter is the one to
  // prefetch (_runtime_utils.py: the previous entry of the post-forward order).
  std::vector<int> order = OrderOf(visits, /*enter=*/false, options);
  std::reverse(order.begin(), order.end());
  for (auto visit = visits.rbegin(); visit != visits.rend(); ++visit) {
    int next = Following(order, visit->unit);
    if (next >= 0 && !NeedsParametersInBackward(options.units[next])) next = -1;
    if (visit->enter) {
      // Only a unit that is still to come is prefetched: the root ends last, when all others have run.
      const bool next_to_come =
          std::none_of(visits.rbegin(), visit, [&](const UnitVisit& v) { return v.unit == next; });
      FinishBackward(visit->unit, next_to_come ? next : -1, options, builder);
      continue;
    }
    const UnitTraits& traits = options.units[visit->unit];
    if (NeedsParametersInBackward(traits)) builder.Unshard(visit->unit);
    const bool before = BackwardOrder(visit->unit, options) == BackwardPrefetch::kBackwardPre;
    builder.Prefetch(traits.backward_prefetch, before ? next : -1);
    if (traits.recompute) {
      builder.Add(Kind::kRecompute, visit->unit);
      if (traits.recomputes_inner) Recompute(Inside(visits, visits.rend() - visit - 1), options, builder);
    }
    builder.Add(Kind::kBackward, visit->unit);
  }
  return builder.Take();
}

// A unit that one pass leaves unsharded is still unsharded in the next: under kShardGradOp without synchronisation the
// second forward gathers nothing.
Schedule StepSchedule(absl::Span<const UnitVisit> visits, int micro_steps, const ScheduleOptions& options) {
  Schedule step;
  std::vector<bool> unsharded(options.units.size(), false);
  ScheduleOptions local = options;
  for (UnitTraits& unit : local.units) unit.sync = false;
  for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
    const ScheduleOptions& now = micro_step + 1 == micro_steps ? options : local;
    const Schedule forward = ForwardSchedule(visits, unsharded, now);
    unsharded = UnshardedAfter(forward, std::move(unsharded));
    const Schedule backward = BackwardSchedule(visits, unsharded, now);
    unsharded = UnshardedAfter(backward, std::move(unsharded));
    step.insert(step.end(), forward.begin(), forward.end());
    step.insert(step.end(), backward.begin(), backward.end());
  }
  step.push_back({Kind::kStep, -1});
  return step;
}

std::vector<bool> UnshardedAfter(const Schedule& schedule, std::vector<bool> unsharded) {
  for (const ScheduleEvent& event : schedule) {
    if (event.kind == Kind::kAllGather) unsharded[event.unit] = true;
    if (IsReshard(event)) unsharded[event.unit] = false;
  }
  return unsharded;
}

// The root is not counted, because it has a separate buffer.
int MaxUnsharded(const Schedule& schedule, std::vector<bool> unsharded, int root) {
  int now = 0;
  for (size_t unit = 0; unit < unsharded.size(); ++unit) now += unsharded[unit] && static_cast<int>(unit) != root;
  int most = now;
  for (const ScheduleEvent& event : schedule) {
    if (event.unit == root) continue;
    if (event.kind == Kind::kAllGather) most = std::max(most, ++now);
    if (IsReshard(event)) --now;
  }
  return most;
}

std::string RenderSchedule(const Schedule& schedule, absl::Span<const std::string> names) {
  std::string text;
  for (const ScheduleEvent& event : schedule) {
    absl::StrAppend(&text, EventName(event.kind));
    if (event.unit >= 0) absl::StrAppend(&text, " ", names[event.unit]);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace fsdp
