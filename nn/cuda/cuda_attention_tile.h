// SPDX-License-Identifier: Apache-2.0
//
// The parts that attention's forward and backward kernels share: how a head's rows come into shared memory, and how
// scores become probabilities. A block is 4 warps, of 16 rows each: with 64 rows, backward's four operand tiles of 128
// float32 columns take 150 KB of shared memory, of the 163 KB that a block may have on sm_80. For .cu files.
#ifndef FSDP_NN_CUDA_CUDA_ATTENTION_TILE_H_
#define FSDP_NN_CUDA_CUDA_ATTENTION_TILE_H_

#include <cstdint>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_tile_product.h"
#include "fsdp/nn/ops/kernel_options.h"

namespace fsdp {

// Queries and keys of a tile; warps and threads of a block. A warp owns 16 rows, the height of a product of tensor
// cores.
constexpr int kTile = 64;
constexpr int kTileWarps = kTile / 16;
constexpr int kTileThreads = kTileWarps * 32;

// A tile's scores or other values, as one warp has them. 16 rows by 64 columns: 32 float32 in each lane.
using ScoreSums = TileSums<kTile / 8>;

// How a head's dimensions are cut: kChunks times kDim, rounded up. A block has one chunk of its operands in shared
// memory at a time and owns one chunk of the results, so that long heads do not need more memory and registers than
// others; each block computes the scores, which need all chunks.
//
//   head_dim 200:   chunk 0 [0, 128)   chunk 1 [128, 256), zeros from 200 on
template <int kChunkDim, int kChunkCount>
struct HeadSize {
  static constexpr int kDim = kChunkDim;
  static constexpr int kChunks = kChunkCount;
};

// The first position of the block's tile, and the number of its chunk. Tiles go from the last one on, if `descending`:
// under a causal mask the last tiles of queries have the most work, and a long block that starts last would run while
// all others have finished.
template <int kChunks>
__device__ inline int BlockTile(bool descending) {
  const unsigned block = descending ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return static_cast<int>(block) / kChunks * kTile;
}
template <int kChunks>
__device__ inline int BlockChunk() {
  return static_cast<int>(blockIdx.x) % kChunks;
}

// 64 rows of a head, or of a chunk of it (`kDim` columns), in shared memory. Rows are kStride elements apart, which
// keeps them aligned to 16 bytes and out of each other's banks.
template <typename T, int kDim>
struct HeadTile {
  static constexpr int kStride = TileStride<T>(kDim);
  T at[kTile * kStride];
};

// 64 x 64 scores or probabilities in shared memory, as a product reads them. For float32, 64 rows of 68 elements; in 16
// bits, of 72.
template <typename T>
struct ScoreTile {
  static constexpr int kStride = TileStride<T>(kTile);
  T at[kTile * kStride];
};

// The rows of one head of one sequence in a tensor of rows. `stride`, in elements, is the distance between whole rows:
// a row of qkv has all heads of q, k and v.
template <typename T>
struct HeadRows {
  T* first;  // of position 0
  int64_t stride;
  int seq_len;
  int dim;

  __device__ T* row(int position) const { return first + position * stride; }

  // Dimensions from chunk * kDim on. `dim` may become less than a chunk: LoadHeadTile fills up with zeros, which add
  // nothing to a product.
  template <int kDim>
  __device__ HeadRows Chunk(int chunk) const {
    return {first + chunk * kDim, stride, seq_len, dim - chunk * kDim};
  }
};

// Copies positions from `begin` on to `tile`, with zeros beyond the head's last dimension and the sequence's end. All
// threads of the block call, and none may read the tile before a __syncthreads. Packs of 16 bytes if every row is
// aligned to them, else element by element.
template <typename T, int kDim>
__device__ inline void LoadHeadTile(const HeadRows<const T>& rows, int begin, HeadTile<T, kDim>& tile) {
  // Elements that a thread copies in one access: 4 of float32, 8 in 16 bits.
  constexpr int kPack = kPackBytes / sizeof(T);
  // All rows are aligned if the first is and the distance is a multiple of a pack. The choice is the same for all
  // threads.
  const bool aligned =
      rows.dim % kPack == 0 && rows.stride % kPack == 0 && reinterpret_cast<uintptr_t>(rows.first) % kPackBytes == 0;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDim / kPack; i += kTileThreads) {
    const int r = i / (kDim / kPack);
    const int c = i % (kDim / kPack) * kPack;
    const int position = begin + r;
    Pack<T, kPack> pack;
    if (aligned && position < rows.seq_len && c < rows.dim) {
      pack = LoadPack<kPack>(rows.row(position) + c);
    } else {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        // Beyond the head or the sequence there may be no memory at all.
        const bool exists = position < rows.seq_len && c + k < rows.dim;
        pack.at[k] = exists ? rows.row(position)[c + k] : Round<T>(0.0f);
      }
    }
    StorePack(pack, tile.at + r * HeadTile<T, kDim>::kStride + c);
  }
}

// Stores the calling warp's 16 rows, rounded, to positions from `begin` + 16 warp on, as far as they exist. Rows of the
// sums are rows of the tile, columns are dimensions of the head; each element is rounded to T once.
template <typename T, int kN>
__device__ inline void StoreHeadRows(const TileSums<kN>& sums, int begin, const HeadRows<T>& rows) {
  // The warp's first position.
  const int first = begin + static_cast<int>(threadIdx.x) / 32 * 16;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int position = first + TileRow(e), column = TileColumn(n, e);
      if (position < rows.seq_len && column < rows.dim) rows.row(position)[column] = Round<T>(sums[n][e]);
    }
  }
}

// Stores the calling warp's 16 rows of `sums`, rounded, to its rows of `tile`, for the products that read them. A warp
// reads the rows that it wrote itself, so its own barrier is enough.
template <typename T>
__device__ inline void StoreScores(const ScoreSums& sums, ScoreTile<T>& tile) {
  // The warp's own 16 rows.
  T* rows = tile.at + static_cast<int>(threadIdx.x) / 32 * 16 * ScoreTile<T>::kStride;
  __syncwarp();  // the lanes that read the previous scores are done
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) rows[TileRow(e) * ScoreTile<T>::kStride + TileColumn(n, e)] = Round<T>(sums[n][e]);
  }
  __syncwarp();
}

// AttentionRounding as flags for the kernels: which scores and probabilities are rounded.
template <typename T>
struct ScoreMath {
  // Positive; the scores are multiplied by it.
  float scale;
  bool rounds_scores;         // also their gradients
  bool rounds_probabilities;  // before the gradient of the softmax is taken

  // The input of softmax: the score times `scale`, and rounded before and after if rounds_scores.
  __device__ float Scaled(float score) const {
    return rounds_scores ? RoundTo<T>(RoundTo<T>(score) * scale) : score * scale;
  }
  // The gradient of a probability, or of a scaled score, as eager attention would store it.
  __device__ float RoundedGrad(float grad) const { return rounds_scores ? RoundTo<T>(grad) : grad; }
  // Gradient of a score from its probability, that probability's gradient, and the row's sum of their products. The
  // scale of the score is part of its derivative.
  __device__ float GradScore(float p, float grad, float sum) const {
    return RoundedGrad(RoundedProbability(p) * (RoundedGrad(grad) - sum)) * scale;
  }
  // The probability that the backward of softmax reads.
  __device__ float RoundedProbability(float p) const { return rounds_probabilities ? RoundTo<T>(p) : p; }
};

// The operands of attention's kernels. q, k and v are adjacent in a row of qkv.
template <typename T>
struct AttentionOperands {
  // Device addresses, not owned. The block finds its head and sequence by blockIdx.y and blockIdx.z.
  const T* qkv;
  float* statistics;  // [batch, heads, seq_len, 2]: maximum, 1 / sum; or [batch, heads, seq_len]: log_sum_exp
  const T* grad_out;  // backward's
  T* out;             // or grad_qkv
  float* row_sums;    // backward's: [batch, heads, seq_len], of probabilities times their gradients
  float* head_grads;  // backward's with groups of heads: [2, batch, heads, seq_len, dim], of k and of v; else null
  ScoreMath<T> math;
  bool keeps_log_sum_exp;  // under kOnline, which float32 shares these kernels with
  // Sizes: heads of q, heads of k and of v (a divisor), elements of a head, positions of a sequence.
  int heads;
  int kv_heads;
  int dim;
  int seq_len;

  // Stores a row's statistics. A probability is e^(score - maximum) * inverse_sum; log_sum_exp also serves as a
  // maximum.
  __device__ void StoreStatistics(int64_t row, float maximum, float inverse_sum) const {
    if (keeps_log_sum_exp) {
      statistics[row] = maximum - logf(inverse_sum);
    } else {
      statistics[2 * row] = maximum;
      statistics[2 * row + 1] = inverse_sum;
    }
  }
  __device__ float Maximum(int64_t row) const { return statistics[keeps_log_sum_exp ? row : 2 * row]; }
  __device__ float InverseSum(int64_t row) const { return keeps_log_sum_exp ? 1.0f : statistics[2 * row + 1]; }

  // Elements from one row to the next.
  __device__ int64_t qkv_stride() const { return static_cast<int64_t>(heads + 2 * kv_heads) * dim; }
  __device__ int64_t out_stride() const { return static_cast<int64_t>(heads) * dim; }

  // Head number `head` of the row's, counting q's, then k's, then v's, in a tensor of qkv's layout. blockIdx.z is the
  // number of the sequence. U is T, or const T.
  template <typename U>
  __device__ HeadRows<U> OfQkv(U* data, int head) const {
    return {data + blockIdx.z * seq_len * qkv_stride() + static_cast<int64_t>(head) * dim, qkv_stride(), seq_len, dim};
  }
  // The block's head in a tensor of out's layout.
  template <typename U>
  __device__ HeadRows<U> OfOut(U* data) const {
    return {data + blockIdx.z * seq_len * out_stride() + static_cast<int64_t>(blockIdx.y) * dim, out_stride(), seq_len,
            dim};
  }
  // Numbers of the block's heads among all heads of a row of qkv. With grouped queries several heads of q share one of
  // k and of v.
  __device__ int q_head() const { return static_cast<int>(blockIdx.y); }
  __device__ int k_head() const { return heads + q_head() / (heads / kv_heads); }
  __device__ int v_head() const { return k_head() + kv_heads; }
  // Number of the first row of scores of the block's head and sequence.
  __device__ int64_t first_row() const { return (static_cast<int64_t>(blockIdx.z) * heads + q_head()) * seq_len; }
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ATTENTION_TILE_H_
