// SPDX-License-Identifier: Apache-2.0
//
// IntervalCopy: elements that go from one place of a flat tensor to one of another.
#ifndef FSDP_TENSOR_INTERVAL_COPY_H_
#define FSDP_TENSOR_INTERVAL_COPY_H_

#include <cstdint>

namespace fsdp {

struct IntervalCopy {
  int64_t from = 0;
  int64_t to = 0;
  int64_t numel = 0;
};

}  // namespace fsdp

#endif  // FSDP_TENSOR_INTERVAL_COPY_H_
