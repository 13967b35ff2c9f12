// SPDX-License-Identifier: Apache-2.0
//
// The kernels that cuda_kernels_benchmark measures, by what bounds them, on the sizes of a model. Each function
// measures one family for one dtype and returns the first error. Names and shapes are the keys by which tools/gpu/
// compares a line with the same kernel of PyTorch (gpu_torch_kernels.py).
#ifndef FSDP_OPTIM_BENCHMARK_KERNEL_CASES_H_
#define FSDP_OPTIM_BENCHMARK_KERNEL_CASES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/optim/benchmark/kernel_runner.h"
#include "fsdp/optim/update_ops.h"

namespace fsdp {

// Sizes of one batch and one layer. GPT-2 has biases, LayerNorm, GELU and weights [in, out]; Llama instead has RMSNorm,
// SwiGLU, rotary embeddings and weights [out, in].
struct ModelSizes {
  std::string name;
  bool is_llama = false;
  int64_t batch = 0, seq_len = 0;
  int64_t width = 0, inner = 0;  // of the residual stream, and between the products of an MLP
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocabulary = 0;

  int64_t rows() const { return batch * seq_len; }
};

// The kernels of one device.
struct DeviceKernels {
  const LayerOps* layers;
  const UpdateOps* updates;
};

// Bounded by memory.
absl::Status MeasureElementwise(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                                DType dtype);
absl::Status MeasureNorms(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes, DType dtype);
absl::Status MeasureEmbedding(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes, DType dtype);
absl::Status MeasureCrossEntropy(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                                 DType dtype);
// The kernels of FSDP and the optimizer on flat buffers of `numel` elements.
absl::Status MeasureFlatBuffers(KernelRunner& runner, const DeviceKernels& kernels, int64_t numel, DType dtype);

// Bounded by arithmetic.
absl::Status MeasureProducts(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes, DType dtype);
// The head's three products with logits whose rows are `row_stride` elements apart.
absl::Status MeasureHead(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes,
                         int64_t row_stride, DType dtype);
// Forward and backward, with each AttentionRounding.
absl::Status MeasureAttention(KernelRunner& runner, const DeviceKernels& kernels, const AttentionShape& shape,
                              DType dtype);

}  // namespace fsdp

#endif  // FSDP_OPTIM_BENCHMARK_KERNEL_CASES_H_
