// SPDX-License-Identifier: Apache-2.0
//
// CountNonFinite: how many elements are NaN or infinite, at several GB/s, so that counting hides behind the reading.
#ifndef FSDP_CHECKPOINT_SOURCE_NONFINITE_H_
#define FSDP_CHECKPOINT_SOURCE_NONFINITE_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Counts; those of several pieces are added up.
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
// Integers and bools have none.
NonFinite CountNonFinite(DType dtype, const void* data, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_NONFINITE_H_
