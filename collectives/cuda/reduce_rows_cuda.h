// SPDX-License-Identifier: Apache-2.0
//
// ReduceRowsOnGpu: reduce_rows.h on a GPU, with the same bits.
#ifndef FSDP_COLLECTIVES_CUDA_REDUCE_ROWS_CUDA_H_
#define FSDP_COLLECTIVES_CUDA_REDUCE_ROWS_CUDA_H_

#include "fsdp/collectives/group/reduce_op.h"
#include "fsdp/collectives/host/reduce_rows.h"
#include "fsdp/tensor/dtype.h"

// CUDA's, so that its headers need not be included here.
struct CUstream_st;

namespace fsdp {

// The kernel takes the rows as parameters, which bounds their number.
inline constexpr int kMaxRowsOnGpu = 64;

// ReduceRows, put on `stream`; at most kMaxRowsOnGpu rows, in memory that the stream's device reaches. An error of the
// launch becomes the thread's last error (CudaLaunchStatus).
void ReduceRowsOnGpu(DType dtype, ReduceOp op, const Reduction& reduction, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_REDUCE_ROWS_CUDA_H_
