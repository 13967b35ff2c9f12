// SPDX-License-Identifier: Apache-2.0
//
// CountNonFinite: how many elements are NaN or infinite, at several GB/s, so that counting hides behind the reading.
#ifndef FSDP_CHECKPOINT_SOURCE_NONFINITE_H_
#define FSDP_CHECKPOINT_SOURCE_NONFINITE_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct NonFinite {
  int64_t nan = 0;
  int64_t inf = 0;

  bool any() const { return nan != 0 || inf != 0; }
  void Add(const NonFinite& other) {
    nan += other.nan;
    inf += other.inf;
  }
};

// Of `numel` elements at `data`, aligned or not; a complex one counts as two, its parts. None where `dtype` is an
// integer or bool.
NonFinite CountNonFinite(DType dtype, const void* data, int64_t numel);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_NONFINITE_H_
