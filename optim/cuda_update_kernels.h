// SPDX-License-Identifier: Apache-2.0
//
// The element loops of the optimizers on a CUDA device: one pass over parameters, gradients and state, many slices in
// one launch. The formulas and the rounding are update_kernels.h's, so the bits are the host's.
#ifndef FSDP_OPTIM_CUDA_UPDATE_KERNELS_H_
#define FSDP_OPTIM_CUDA_UPDATE_KERNELS_H_

#include <vector>

#include "fsdp/optim/update_ops.h"

struct CUstream_st;

namespace fsdp {

// Issue all updates on `stream`; parameters of one gradient dtype share launches. The caller keeps the memory alive and
// checks the launch.
void CudaUpdateAdamW(const std::vector<AdamWUpdate>& updates, CUstream_st* stream);
void CudaUpdateSgd(const std::vector<SgdUpdate>& updates, CUstream_st* stream);

// As UpdateOps::UpdateGradScale.
void CudaUpdateGradScale(const Tensor& state, const Tensor& found_inf, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_OPTIM_CUDA_UPDATE_KERNELS_H_
