// SPDX-License-Identifier: Apache-2.0
//
// The host's dropout kernel. Runs immediately on the calling thread.
#ifndef FSDP_NN_HOST_HOST_DROPOUT_H_
#define FSDP_NN_HOST_HOST_DROPOUT_H_

#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// out = x / (1 - p), rounded once, if `mask` keeps the element, else 0. Both have one activation dtype and one numel;
// out may be x.
void HostDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_DROPOUT_H_
