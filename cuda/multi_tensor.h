// SPDX-License-Identifier: Apache-2.0
//
// Kernels over many tensors of a CUDA device, such as all gradients of a model or all small tensors of a state: tensors
// of one dtype share launches, each of which takes as many as fit into a kernel's parameters. The caller checks the
// operands, keeps the memory alive and checks the launches.
#ifndef FSDP_CUDA_MULTI_TENSOR_H_
#define FSDP_CUDA_MULTI_TENSOR_H_

#include <vector>

#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

// As TensorOps::ScaleBy, CheckFinite and CopyTensors.
void CudaScaleTensors(const std::vector<Tensor>& tensors, const Tensor& factor, CUstream_st* stream);
void CudaFindNotFinite(const std::vector<Tensor>& tensors, const Tensor& found_inf, CUstream_st* stream);
void CudaCopyTensors(const std::vector<TensorCopy>& copies, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_CUDA_MULTI_TENSOR_H_
