// SPDX-License-Identifier: Apache-2.0
//
// LowRank: the change that LoRA makes to one weight, scale * B @ A, computed for any interval of the weight without the
// whole product or a whole factor in memory:
//
//   weight          is_transposed false: [out, in], += scale * B @ A           (Linear; convolutions, with flat inputs)
//                   true:                [in, out], += scale * (B @ A)^T       (Conv1D of transformers; embeddings)
//   A [rank, in]    B [out, rank]
//
// The arithmetic is PEFT's on a CPU: the product in float32, times the scale, added in float32 and rounded once to the
// weight's dtype; in float64 if the weight or a factor is. The terms of the product are added in their order by fused
// multiplications and additions (fused_sums.h), as torch does for such sizes as models have: results are then equal to
// PEFT's, bit for bit. Small matrices torch multiplies otherwise, and the last bit of float32 may differ. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_LOW_RANK_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_LOW_RANK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct LowRank {
  StateKey a, b;  // in the adapter; A's dimensions after the first count as one, as do B's after the second
  int64_t rank = 0;
  int64_t in = 0;
  int64_t out = 0;
  double scale = 0;
  bool is_transposed = false;
};

// Adds the elements `interval` of the change to `weight`, which has those elements in `dtype`. Uses at most about 8 MiB
// of memory. Errors are of reading the adapter.
absl::Status AddLowRank(const TensorSource& adapter, const LowRank& change, const Interval& interval, DType dtype,
                        std::byte* weight);

// Adds the elements `interval` of scale * adapter[key] to `values`, by the same arithmetic: for a bias.
absl::Status AddScaled(const TensorSource& adapter, const StateKey& key, double scale, const Interval& interval,
                       DType dtype, std::byte* values);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_LOW_RANK_H_
