// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/deepspeed/flat_space.h"

#include <algorithm>

#include "fsdp/base/status_macros.h"

namespace fsdp {

// Runs come in the order of files; a search needs them sorted, and an overlap would give elements two values.
bool FlatSpace::Finish() {
  for (std::vector<FlatRun>& runs : lists_) {
    runs.erase(std::remove_if(runs.begin(), runs.end(), [](const FlatRun& run) { return run.numel == 0; }), runs.end());
    std::sort(runs.begin(), runs.end(), [](const FlatRun& a, const FlatRun& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < runs.size(); ++i) {
      if (runs[i].begin - runs[i - 1].begin < runs[i - 1].numel) return false;
    }
  }
  return true;
}

// An element of a parameter is in list element / part, at the same place in every list: ZeRO 3 divides each parameter
// among all ranks. ZeRO 1 and 2 have one list, on which the parts of ranks follow each other, and a parameter may begin
// on one rank and end on the next.
void FlatSpace::ForEachPiece(int64_t offset, int64_t numel, const Interval& interval,
                             const std::function<bool(const FlatRun*, const Interval&)>& use) const {
  const auto count = static_cast<int64_t>(lists_.size());
  const int64_t part = numel / count + (numel % count != 0 ? 1 : 0);  // of each list
  for (int64_t element = interval.begin; element < interval.end;) {
    const std::vector<FlatRun>& runs = lists_[element / part];
    const int64_t in_part = element % part;
    // Elements of the list, to the end of this list's part.
    int64_t at = offset + in_part;
    const int64_t end = at + std::min(interval.end - element, part - in_part);
    element += end - at;
    auto run = std::upper_bound(runs.begin(), runs.end(), at,
                                [](int64_t value, const FlatRun& next) { return value < next.begin; });
    if (run != runs.begin()) --run;
    while (at < end) {
      const bool is_there = run != runs.end() && run->begin <= at && at < run->begin + run->numel;
      const int64_t piece_end = is_there ? std::min(end, run->begin + run->numel) : end;
      if (!use(is_there ? &*run : nullptr, {at, piece_end})) return;
      at = piece_end;
      if (is_there) ++run;
    }
  }
}

FlatSpace::Coverage FlatSpace::Covers(int64_t offset, int64_t numel, DType* dtype) const {
  bool any = false;
  bool all = true;
  std::optional<DType> first;
  ForEachPiece(offset, numel, {0, numel}, [&](const FlatRun* run, const Interval&) {
    any = any || run != nullptr;
    all = all && run != nullptr && run->dtype == first.value_or(run->dtype);
    if (run != nullptr && !first) first = run->dtype;
    return all || !any;
  });
  if (all) *dtype = first.value_or(DType::kFloat32);
  return all ? Coverage::kWhole : any ? Coverage::kPart : Coverage::kNone;
}

absl::Status FlatSpace::Read(int64_t offset, int64_t numel, const Interval& interval, const FlatReader& read,
                             std::byte* out) const {
  absl::Status status;
  ForEachPiece(offset, numel, interval, [&](const FlatRun* run, const Interval& in_list) {
    if (run == nullptr) {
      status = absl::InternalError("a read of a parameter that is not there");
      return false;
    }
    const int64_t size = SizeOf(run->dtype);
    const auto nbytes = static_cast<size_t>(in_list.size() * size);
    status = read(run->file, run->byte + (in_list.begin - run->begin) * size, absl::MakeSpan(out, nbytes));
    out += nbytes;
    return status.ok();
  });
  return status;
}

}  // namespace fsdp
