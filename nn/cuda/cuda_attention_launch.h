// SPDX-License-Identifier: Apache-2.0
//
// How attention's kernels are launched: their operands, their grid, and the instance for a dtype and a head_dim. For
// .cu files.
#ifndef FSDP_NN_CUDA_CUDA_ATTENTION_LAUNCH_H_
#define FSDP_NN_CUDA_CUDA_ATTENTION_LAUNCH_H_

#include <cuda_runtime.h>

#include <type_traits>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_attention_tile.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// A block for each chunk of each tile of each head of each sequence: x counts tiles and chunks, y heads of q, z
// sequences. Blocks of one tile are neighbours, a block for each chunk. BlockTile and BlockChunk undo the numbering.
inline dim3 AttentionGrid(const AttentionShape& shape, int chunks) {
  // A last tile that is not full counts as a tile.
  return dim3(static_cast<unsigned>((shape.seq_len + kTile - 1) / kTile * chunks),
              static_cast<unsigned>(shape.num_heads), static_cast<unsigned>(shape.batch));
}

// The operands that both directions have; the caller adds its own. The tensors must live until the kernel has run. Only
// 16-bit models round. A value, copied into the parameters of the kernel.
template <typename T>
AttentionOperands<T> AttentionOperandsOf(const AttentionShape& shape, const Tensor& qkv, const Tensor& statistics) {
  // The operands that only backward has stay null here.
  AttentionOperands<T> o = {};
  o.qkv = qkv.data_as<const T>();
  o.statistics = statistics.data_as<float>();
  // Float32 is never rounded, so all kinds of rounding share one instance.
  o.keeps_log_sum_exp = shape.rounding == AttentionRounding::kOnline;
  const bool eager = shape.rounding != AttentionRounding::kFused && !std::is_same_v<T, float>;
  o.math = {shape.scale, eager, eager && shape.rounding == AttentionRounding::kEager};
  o.heads = static_cast<int>(shape.num_heads);
  o.kv_heads = static_cast<int>(shape.kv_heads());
  o.dim = static_cast<int>(shape.head_dim);
  o.seq_len = static_cast<int>(shape.seq_len);
  return o;
}

// Calls f(TypeTag<T>(), HeadSize<kDim, kChunks>()) with the smallest instance that head_dim fits: 64, 128, or 256 as
// two chunks of 128. Kernels are compiled for these three, and a smaller head is filled up with zeros. Precondition:
// head_dim is at most kMaxCudaHeadDim.
template <typename F>
void WithHeadType(DType dtype, const AttentionShape& shape, F f) {
  WithActivationType(dtype, [&](auto tag) {
    if (shape.head_dim <= 64) {
      f(tag, HeadSize<64, 1>());
    } else if (shape.head_dim <= 128) {
      f(tag, HeadSize<128, 1>());
    } else {
      f(tag, HeadSize<128, 2>());
    }
  });
}

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ATTENTION_LAUNCH_H_
