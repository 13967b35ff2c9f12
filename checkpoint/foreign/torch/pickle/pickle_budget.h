// SPDX-License-Identifier: Apache-2.0
//
// PickleBudget: counts the memory of the structures that are built from a pickle's values, so that a limit such as
// PickleMemoryLimit holds for parsing, for the tree and for a command that reads the checkpoint, and not only for the
// values. Values can be shared, so a small pickle can describe a large tree: code that builds one takes the memory from
// the budget first, and gets an error instead of making the allocation.
//
// Two sums, because two sets of data are in memory at different times:
//
//   now     data built while the pickled bytes and the values still exist
//   later   data that stays afterwards, and an estimate of what a command makes of it
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
  // `limit`: in bytes, including the pickled bytes.
  PickleBudget(const Pickle& pickle, int64_t limit) : limit_(limit), now_(pickle.input_bytes() + pickle.memory()) {}

  // kResourceExhausted at the place of `value` when either sum exceeds the limit. Estimates, in bytes.
  absl::Status Take(PickleValue value, int64_t now, int64_t later);

  // The sums, for Reset: what was taken since is freed.
  struct Sums {
    int64_t now = 0;
    int64_t later = 0;
  };
  Sums sums() const { return {now_, later_}; }
  void Reset(const Sums& sums) {
    now_ = sums.now;
    later_ = sums.later;
  }

 private:
  const int64_t limit_;
  int64_t now_;
  int64_t later_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PICKLE_PICKLE_BUDGET_H_
