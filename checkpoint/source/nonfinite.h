// SPDX-License-Identifier: Apache-2.0
//
// CountNonFinite: counts NaN and infinite elements at several GB/s, so that reading, not counting, limits the speed.
#ifndef FSDP_CHECKPOINT_SOURCE_NONFINITE_H_
#define FSDP_CHECKPOINT_SOURCE_NONFINITE_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// The counts; Add combines the counts of several pieces.
struct NonFinite {
  int64_t nan = 0;
  int64_t inf = 0;

  bool any() const { return nan != 0 || inf != 0; }
  void Add(const NonFinite& other) {
    nan += other.nan;
    inf += other.inf;
  }
};

// Counts among `numel` elements at `data` in host memory, aligned or not. A complex element counts as two, its parts.
// Zero for integers and bools.
NonFinite CountNonFinite(DType dtype, const void* data, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_NONFINITE_H_
