// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/initializer.h"

#include <algorithm>

#include "absl/types/span.h"
#include "fsdp/base/digest.h"
#include "fsdp/base/random.h"

namespace fsdp {

void Initializer::Fill(uint64_t seed, std::string_view fqn, const Interval& interval, float* out) const {
  const absl::Span<float> values(out, interval.size());
  if (kind == Kind::kConstant) {
    std::fill(values.begin(), values.end(), mean);
  } else {
    // Counter-based random numbers: element i of parameter `fqn` is a function of (seed, hash of fqn, i), with no state
    // that an earlier element would have to advance. So a rank draws only its own shard, and gets the same values as
    // one process that fills the whole parameter.
    FillNormal(Philox(seed, DigestOf(fqn).low), interval.begin, values);
    for (float& value : values) value = mean + stddev * value;
  }
  const Interval zeroed = Intersect(interval, zeros);
  if (!zeroed.empty()) std::fill_n(out + (zeroed.begin - interval.begin), zeroed.size(), 0.0f);
}

}  // namespace fsdp
