// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_source.h"

#include <algorithm>

namespace fsdp {

std::vector<Interval> TensorSource::Pieces(const StateKey& key, const Interval& interval) const {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  const ShardedTensor* tensor = contents().FindTensor(key);
  const int64_t step = kPieceBytes / (tensor == nullptr ? 1 : SizeOf(tensor->dtype));
  std::vector<Interval> pieces;
  for (int64_t begin = interval.begin; begin < interval.end; begin += step) {
    pieces.push_back({begin, std::min(interval.end, begin + step)});
  }
  return pieces;
}

}  // namespace fsdp
