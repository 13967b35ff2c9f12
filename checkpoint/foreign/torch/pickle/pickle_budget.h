// SPDX-License-Identifier: Apache-2.0
//
// PickleBudget: the memory of what is made of a pickle's values, so that a limit such as PickleMemoryLimit holds for
// parsing, for the tree that is built and for a command that reads the checkpoint, and not for the values alone. Values
// can be shared, so a small pickle can describe a large tree: who builds one takes the memory here first, and is
// refused with a status where the allocation would be.
//
// Two sums, because two things are in memory at different times:
//
//   now     what is built while the pickled bytes and the values are still there
//   later   what stays when they are gone, and an estimate of what a command makes of it
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUDGET_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle.h"

namespace fsdp {

// Used by one thread.
class PickleBudget {
 public:
  explicit PickleBudget(const Pickle& pickle) : PickleBudget(pickle, PickleMemoryLimit(pickle.size())) {}
  // `limit`: in bytes, the pickled bytes included.
  PickleBudget(const Pickle& pickle, int64_t limit) : limit_(limit), now_(pickle.input_bytes() + pickle.memory()) {}

  // kResourceExhausted at the place of `value` when either sum exceeds the limit. Estimates, in bytes.
  absl::Status Take(PickleValue value, int64_t now, int64_t later);

 private:
  const int64_t limit_;
  int64_t now_;
  int64_t later_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUDGET_H_
