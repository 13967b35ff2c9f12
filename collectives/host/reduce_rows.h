// SPDX-License-Identifier: Apache-2.0
//
// ReduceRows: the arithmetic of the host backends' collectives. It combines n rows of memory into one, in one pass, in
// the order of the rows. Vectorised with run-time dispatch; every target gives the same bits. Thread-safe.
#ifndef FSDP_COLLECTIVES_HOST_REDUCE_ROWS_H_
#define FSDP_COLLECTIVES_HOST_REDUCE_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "fsdp/collectives/group/reduce_op.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// destination[i] = rows[0][i] op rows[1][i] op ..., for i in [0, numel). `destination` may be one of the rows, else it
// does not overlap any; there is at least one row; all are aligned to their elements.
struct Reduction {
  absl::Span<const std::byte* const> rows;
  std::byte* destination = nullptr;
  int64_t numel = 0;

  // For rows on several hosts, whose sum is passed from one host to the next: the combination of the rows before these,
  // in the type of the sum; null if there are no rows before. It may be the destination.
  const std::byte* sum_before = nullptr;
  // More rows follow on another host: the destination becomes their sum_before, neither divided nor rounded.
  bool is_continued = false;
  // The number of rows on all hosts, by which kAvg divides; 0: only these rows.
  int64_t rows_in_all = 0;
};

// Bytes of an element of a sum that is passed on: 4 for bfloat16 and float16, which are combined in float32.
int64_t SumSizeOf(DType dtype);

// bfloat16 and float16 are combined in float32 and rounded once; kAvg divides once, in the type of the sum; integer
// sums wrap. REQUIRES: a dtype and op that CheckAllReduce takes.
void ReduceRows(DType dtype, ReduceOp op, const Reduction& reduction);

// The instruction sets that the kernel is built for.
enum class ReduceTarget { kBaseline, kAvx2, kAvx512 };

// True if this machine can run it.
bool IsSupported(ReduceTarget target);

// ReduceRows on a given target, for tests. REQUIRES: IsSupported(target).
void ReduceRowsOn(ReduceTarget target, DType dtype, ReduceOp op, const Reduction& reduction);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_REDUCE_ROWS_H_
