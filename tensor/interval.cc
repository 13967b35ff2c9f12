// SPDX-License-Identifier: Apache-2.0

#include "fsdp/tensor/interval.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"

namespace fsdp {

std::string Interval::ToString() const { return absl::StrCat("[", begin, ", ", end, ")"); }

Interval Intersect(const Interval& a, const Interval& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// chunk = ceil(n / count), and rank `index` starts at index * chunk: so with n = 5 and count = 4 the chunks have 2, 2,
// 1 and 0 elements, not 2, 1, 1, 1. PyTorch cuts so, and a sharded checkpoint of PyTorch is only readable by the same
// rule.
Interval ChunkOf(int64_t n, int count, int index) {
  Check(n >= 0 && count > 0 && index >= 0 && index < count, "ChunkOf: n, count or index out of range");
  const int64_t chunk = n / count + (n % count != 0 ? 1 : 0);
  // No overflow: chunk * (count - 1) <= n + count.
  const int64_t begin = std::min(n, chunk * index);
  return {begin, std::min(n, begin + chunk)};
}

Interval Dim0Chunk(const Shape& shape, int world_size, int rank) {
  if (shape.rank() == 0) return ChunkOf(1, world_size, rank);
  const Interval rows = ChunkOf(shape.dim(0), world_size, rank);
  const int64_t row_numel = shape.row_numel();
  return {rows.begin * row_numel, rows.end * row_numel};
}

// After sorting by begin, one pass that tracks the end of the covered part finds a hole as a begin beyond it and an
// overlap as a begin before it. DataLoss, because intervals come from files: a wrong cover there means a damaged
// checkpoint.
absl::Status CheckCover(std::vector<Interval> intervals, int64_t numel) {
  for (const Interval& interval : intervals) {
    if (interval.begin > interval.end) {
      return absl::DataLossError(absl::StrCat("interval ", interval.ToString(), " ends before it begins"));
    }
  }
  intervals.erase(std::remove_if(intervals.begin(), intervals.end(), [](const Interval& i) { return i.empty(); }),
                  intervals.end());
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  int64_t covered = 0;  // [0, covered) is covered exactly once
  for (const Interval& interval : intervals) {
    const Interval inside = Intersect(interval, {0, numel});
    if (inside.size() != interval.size()) {
      return absl::DataLossError(absl::StrCat("elements ", interval.ToString(), " reach outside [0, ", numel, ")"));
    }
    if (interval.begin > covered) {
      return absl::DataLossError(
          absl::StrCat("elements ", Interval{covered, interval.begin}.ToString(), " are missing"));
    }
    if (interval.begin < covered) {
      const Interval twice = {interval.begin, std::min(covered, interval.end)};
      return absl::DataLossError(absl::StrCat("elements ", twice.ToString(), " are held twice"));
    }
    covered = interval.end;
  }
  if (covered < numel) {
    return absl::DataLossError(absl::StrCat("elements ", Interval{covered, numel}.ToString(), " are missing"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp
