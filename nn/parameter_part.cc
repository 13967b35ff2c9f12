// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/parameter_part.h"

#include <algorithm>

namespace fsdp {

std::vector<IntervalCopy> RunsInWhole(const Shape& shape, const ParameterPart& part, const Interval& interval) {
  std::vector<IntervalCopy> runs;
  if (interval.empty()) return runs;
  int64_t inner = 1;  // elements of one index of the dimension
  for (int d = part.dim + 1; d < shape.rank(); ++d) inner *= shape.dim(d);
  const int64_t run = shape.dim(part.dim) * inner;
  const int64_t stride = part.whole.dim(part.dim) * inner;
  for (int64_t from = interval.begin; from < interval.end;) {
    const int64_t row = from / run;
    const int64_t end = std::min(interval.end, (row + 1) * run);
    runs.push_back({from, row * stride + part.begin * inner + from - row * run, end - from});
    from = end;
  }
  return runs;
}

}  // namespace fsdp
