// SPDX-License-Identifier: Apache-2.0
//
// The host's kernels around the matrix product of a convolution. They run immediately on the calling thread.
#ifndef FSDP_NN_HOST_HOST_FOLD_H_
#define FSDP_NN_HOST_HOST_FOLD_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// As LayerOps::Unfold and Fold. Operands have the sizes of `shape` and one activation dtype.
void HostUnfold(const Tensor& image, const ConvolutionShape& shape, const Tensor& columns);

void HostFold(const Tensor& columns, const ConvolutionShape& shape, const Tensor& image);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_FOLD_H_
