// SPDX-License-Identifier: Apache-2.0
//
// LayerOps on the host. Each call puts one piece of work on the stream, which runs on the stream's thread; the kernels
// are in this folder's other host_*.h. Calls that are large enough use up to `kernel_threads` threads: a product as
// oneDNN divides it, attention by heads, the other kernels by rows or elements. Gathers, scatters and folds run on one.
#ifndef FSDP_NN_HOST_HOST_LAYER_OPS_H_
#define FSDP_NN_HOST_HOST_LAYER_OPS_H_

#include <memory>

#include "fsdp/nn/ops/layer_ops.h"

namespace fsdp {

// `kernel_threads` is at least 1. Keep the object: oneDNN compiles a primitive for each new shape. It has no other
// state. The work holds its tensors by value until it has run. An error of a kernel, or of the memory that attention
// needs, fails the stream.
std::unique_ptr<const LayerOps> NewHostLayerOps(int kernel_threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_LAYER_OPS_H_
