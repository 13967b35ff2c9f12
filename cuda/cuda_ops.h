// SPDX-License-Identifier: Apache-2.0
//
// The CUDA device's kernels of tensor/ops.h. Results have the host kernels' bits, except NaN payloads and the order in
// which a squared norm is summed, which is fixed here too.
#ifndef FSDP_CUDA_CUDA_OPS_H_
#define FSDP_CUDA_CUDA_OPS_H_

#include "fsdp/tensor/ops.h"

namespace fsdp {

// For streams of CUDA devices. Elements must be aligned to their own size.
const TensorOps& CudaTensorOps();

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_OPS_H_
