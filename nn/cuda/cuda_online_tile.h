// SPDX-License-Identifier: Apache-2.0
//
// The parts that the kernels of cuda_online_attention.h share: their operands, tiles that are copied to shared memory
// during the computation with the previous ones, and products whose results stay in registers, from which the next
// product reads them as its left operand:
//
//   result of a product                       left operand of the next one, columns 16 k to 16 k + 15
//   sums[2 k]      elements 0 1 | 2 3    ->   registers 0 | 1      rows g | g + 8, columns 2 t, 2 t + 1
//   sums[2 k + 1]  elements 0 1 | 2 3    ->   registers 2 | 3      the same, columns + 8
//
// (g, t as in cuda/mma.h). A block has 4 warps. For .cu files.
#ifndef FSDP_NN_CUDA_CUDA_ONLINE_TILE_H_
#define FSDP_NN_CUDA_CUDA_ONLINE_TILE_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "fsdp/cuda/async_copy.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/mma.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_attention_tile.h"
#include "fsdp/nn/cuda/cuda_tile_product.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Elements of a 16-byte access.
constexpr int kHalfPack = 8;

constexpr float kLog2E = 1.44269504f;

// The values of a row of scores that backward needs: the logarithm, to base 2, of the sum of e^score, and the row sum
// of grad_out out.
struct alignas(8) ScoreRow {
  float log2_sum_exp;
  float grad_dot_out;
};

// A value, copied into the parameters of the kernels. A block finds its head and sequence by blockIdx.x, and its tile
// by blockIdx.y: so the tiles of all heads that have the most work can start first.
template <typename T>
struct OnlineOperands {
  // Device addresses, not owned.
  const T* qkv;
  const T* grad_out;   // backward's
  const T* out;        // backward's
  T* result;           // out, or backward grad_qkv
  float* log_sum_exp;  // [batch, heads, seq_len]
  ScoreRow* rows;      // backward's: the same shape
  float scale;         // of the scores
  float scale_log2;    // scale log2(e)
  bool aligned;        // every row of every tensor can be read and written by packs
  // Sizes: heads of q, heads of k and of v (a divisor), elements of a head, positions of a sequence.
  int heads;
  int kv_heads;
  int dim;
  int seq_len;

  // Head number `head` of a row of qkv, counting q's, then k's, then v's, in a tensor of that layout.
  template <typename U>
  __device__ HeadRows<U> OfQkv(U* data, int sequence, int head) const {
    const int64_t stride = static_cast<int64_t>(heads + 2 * kv_heads) * dim;
    return {data + sequence * stride * seq_len + static_cast<int64_t>(head) * dim, stride, seq_len, dim};
  }
  template <typename U>
  __device__ HeadRows<U> OfOut(U* data, int sequence, int head) const {
    const int64_t stride = static_cast<int64_t>(heads) * dim;
    return {data + sequence * stride * seq_len + static_cast<int64_t>(head) * dim, stride, seq_len, dim};
  }
  // The first row of scores of a head.
  __device__ int64_t FirstRow(int sequence, int head) const {
    return (static_cast<int64_t>(sequence) * heads + head) * seq_len;
  }
};

template <typename T>
OnlineOperands<T> OnlineOperandsOf(const AttentionShape& shape, const Tensor& qkv, const Tensor& statistics) {
  OnlineOperands<T> o = {};
  o.qkv = qkv.data_as<const T>();
  o.log_sum_exp = statistics.data_as<float>();
  o.scale = shape.scale;
  o.scale_log2 = shape.scale * kLog2E;
  o.heads = static_cast<int>(shape.num_heads);
  o.kv_heads = static_cast<int>(shape.kv_heads());
  o.dim = static_cast<int>(shape.head_dim);
  o.seq_len = static_cast<int>(shape.seq_len);
  return o;
}

// OnlineOperands::aligned of tensors at these addresses. Rows are multiples of head_dim.
inline bool HaveAlignedRows(int64_t head_dim, std::initializer_list<const void*> tensors) {
  return head_dim % kHalfPack == 0 &&
         std::all_of(tensors.begin(), tensors.end(), [](const void* data) { return IsAligned(data, kPackBytes); });
}

// A block for each tile of `positions` of each of `heads` heads of each sequence.
inline dim3 OnlineGrid(const AttentionShape& shape, int64_t heads, int positions) {
  return dim3(static_cast<unsigned>(shape.batch * heads),
              static_cast<unsigned>((shape.seq_len + positions - 1) / positions));
}

template <int kDim>
struct HeadDim {
  static constexpr int kValue = kDim;
};

// Calls f(TypeTag<T>(), HeadDim<kDim>()) with the smallest instance that head_dim fits: 64, 128 or 256. A smaller head
// is filled up with zeros.
template <typename F>
void WithOnlineHead(DType dtype, int64_t head_dim, F f) {
  const auto with_dim = [&](auto tag) {
    if (head_dim <= 64) return f(tag, HeadDim<64>());
    if (head_dim <= 128) return f(tag, HeadDim<128>());
    f(tag, HeadDim<256>());
  };
  if (dtype == DType::kFloat16) return with_dim(TypeTag<__half>());
  with_dim(TypeTag<__nv_bfloat16>());
}

// Starts to copy kRows positions from `begin` on to `tile`, with zeros beyond the head's last dimension and the
// sequence's end. All threads of the block call; the rows have arrived after AwaitCopies and a barrier. Rows that are
// not `aligned` are copied element by element before this returns.
template <int kDim, int kRows, typename T>
__device__ inline void LoadTile(const HeadRows<const T>& rows, int begin, bool aligned, T* tile) {
  constexpr int kPacks = kDim / kHalfPack;  // of a row
  constexpr int kStride = TileStride<T>(kDim);
  if (!aligned) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim; i += kTileThreads) {
      const int position = begin + i / kDim, c = i % kDim;
      const bool exists = position < rows.seq_len && c < rows.dim;
      tile[i / kDim * kStride + c] = exists ? rows.row(position)[c] : Round<T>(0.0f);
    }
    return;
  }
  // A thread copies one pack of every kStep-th row.
  constexpr int kStep = kTileThreads / kPacks;
  int thread = static_cast<int>(threadIdx.x);
  // Hides the value, so that the addresses are computed again for each tile: kept over the loop, they make the sums
  // spill.
  asm volatile("" : "+r"(thread));
  const int r = thread / kPacks, c = thread % kPacks * kHalfPack;
  const T* from = rows.row(begin + r) + c;
  T* to = tile + r * kStride + c;
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    const bool exists = begin + r + i * kStep < rows.seq_len && c < rows.dim;
    CopyAsync<kPackBytes>(to + i * kStep * kStride, exists ? from + i * kStep * rows.stride : rows.first, exists);
  }
}

// Runs compute(i, stage) for i in [0, n) while load(i + 1, stage) is under way, in kStages (1 or 2) sets of tiles; with
// one set nothing overlaps. All threads of the block call. `load` starts copies; when compute runs, these and any
// copies that the caller started earlier have arrived.
template <int kStages, typename Load, typename Compute>
__device__ inline void ForEachTile(int n, Load load, Compute compute) {
  load(0, 0);
  CommitCopies();
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    if (kStages == 1 && i > 0) {
      __syncthreads();  // all have computed with the previous tile
      load(i, 0);
      CommitCopies();
    }
    AwaitCopies<0>();
    __syncthreads();  // all copies are here, and no thread computes with the other set any more
    if (kStages == 2 && i + 1 < n) {
      load(i + 1, (i + 1) % 2);
      CommitCopies();
    }
    compute(i, kStages == 2 ? i % 2 : 0);
  }
}

// Offsets in a tile of the row that the calling lane names to LoadMatrices, of a 16 x 16 part: with the left operand's
// order of the four matrices, which is also the right operand's if its rows are k; and with the right operand's order
// if its rows are columns of the result.
__device__ inline int LeftOffset(int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return (lane % 8 + lane / 8 % 2 * 8) * stride + lane / 16 * 8;
}
__device__ inline int ColumnsOffset(int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}

// sums [16 kM, 8 kN] = a b^T over kDim columns: rows of `a` (the warp's own 16 kM) by rows of `b`, both of a tile of
// stride TileStride<T>(kDim). With `left` given (one for each 16 columns and 16 rows), those are a's registers.
template <int kM, int kN, int kDim, typename T, typename LoadLeft>
__device__ inline void MultiplyByRows(LoadLeft load_left, const T* b, float (&sums)[kM][kN][4]) {
  constexpr int kStride = TileStride<T>(kDim);
  b += ColumnsOffset(kStride);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][n][e] = 0;
    }
  }
#pragma unroll 2
  for (int k = 0; k < kDim / 16; ++k) {
    MmaA left[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) left[m] = load_left(m, k);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      unsigned right[4];
      LoadMatrices<false>(b + 8 * n * kStride + 16 * k, right);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MultiplyAdd<T>(left[m], {right[0], right[1]}, sums[m][n]);
        MultiplyAdd<T>(left[m], {right[2], right[3]}, sums[m][n + 1]);
      }
    }
  }
}

// sums [16 kM, 8 kN] += weights [16 kM, 8 kK] b: weights are rounded to T on the way, b's rows are k, and its first
// 8 kN columns are used, of rows of `stride`.
template <int kM, int kN, int kK, typename T>
__device__ inline void AddWeightedRows(const float (&weights)[kM][kK][4], const T* b, int stride,
                                       float (&sums)[kM][kN][4]) {
  b += LeftOffset(stride);
#pragma unroll
  for (int k = 0; k < kK / 2; ++k) {
    MmaA left[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const auto& low = weights[m][2 * k];
      const auto& high = weights[m][2 * k + 1];
      left[m] = {{RoundPair<T>(low[0], low[1]), RoundPair<T>(low[2], low[3]), RoundPair<T>(high[0], high[1]),
                  RoundPair<T>(high[2], high[3])}};
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      unsigned right[4];
      LoadMatrices<true>(b + 16 * k * stride + 8 * n, right);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        MultiplyAdd<T>(left[m], {right[0], right[1]}, sums[m][n]);
        MultiplyAdd<T>(left[m], {right[2], right[3]}, sums[m][n + 1]);
      }
    }
  }
}

// Operands of MultiplyByRows: the warp's rows of a tile, read for every product, or once.
template <int kDim, typename T>
struct RowsInMemory {
  const T* at;  // of the warp's first row
  __device__ MmaA operator()(int m, int k) const {
    constexpr int kStride = TileStride<T>(kDim);
    MmaA left;
    LoadMatrices<false>(at + LeftOffset(kStride) + 16 * m * kStride + 16 * k, left.at);
    return left;
  }
};
template <int kM, int kDim>
struct RowsInRegisters {
  MmaA at[kM][kDim / 16];
  template <typename T>
  __device__ void Load(const T* rows) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) at[m][k] = RowsInMemory<kDim, T>{rows}(m, k);
    }
  }
  __device__ MmaA operator()(int m, int k) const { return at[m][k]; }
};

// Stores the calling warp's 16 kM rows of 8 kN sums, each times factors[m][0] or, for the lower 8 of 16 rows,
// factors[m][1], to positions from `begin` on, as far as they exist. `tile` is the warp's own memory, for as many rows
// of kStride, which no lane uses any more: through it the rows are written by packs.
template <int kStride, int kM, int kN, typename T>
__device__ inline void StoreRows(const float (&sums)[kM][kN][4], const float (&factors)[kM][2], T* tile, int begin,
                                 bool aligned, const HeadRows<T>& rows) {
  __syncwarp();  // the lanes that read the tile are done
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned pair = RoundPair<T>(sums[m][n][2 * r] * factors[m][r], sums[m][n][2 * r + 1] * factors[m][r]);
        *reinterpret_cast<unsigned*>(tile + (16 * m + TileRow(2 * r)) * kStride + TileColumn(n, 0)) = pair;
      }
    }
  }
  __syncwarp();
  constexpr int kPacks = kN;  // of a row
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % 32; i < 16 * kM * kPacks; i += 32) {
    const int position = begin + i / kPacks, c = i % kPacks * kHalfPack;
    if (position >= rows.seq_len) break;
    const Pack<T, kHalfPack> pack = LoadPack<kHalfPack>(tile + i / kPacks * kStride + c);
    if (aligned && c < rows.dim) {
      StorePack(pack, rows.row(position) + c);
    } else {
#pragma unroll
      for (int k = 0; k < kHalfPack; ++k) {
        if (c + k < rows.dim) rows.row(position)[c + k] = pack.at[k];
      }
    }
  }
}

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ONLINE_TILE_H_
