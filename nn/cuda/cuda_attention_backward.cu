// SPDX-License-Identifier: Apache-2.0
//
// Attention's backward: one kernel goes along the rows of scores, for the gradient of q, and one along their columns,
// for the gradients of k and v, so that every sum has one owner, and no float is added by an atomic operation, whose
// order would differ from run to run. With p the probabilities, rounded as operands of the products:
//
//   grad_p = grad_out v^T;  grad_scores = scale p (grad_p - row sum of p grad_p)
//   grad_q = grad_scores k;  grad_k = grad_scores^T q;  grad_v = p^T grad_out
//
//   GradQueries   a block owns 64 queries; over the tiles of keys: first the row sums of p grad_p, written out for the
//                 other kernel, then grad_scores and grad_q
//   GradKeys      a block owns 64 keys; over the tiles of queries from the diagonal on: grad_v and grad_k
//   AddHeads      with grouped queries: GradKeys ran once for each head of q, and this adds the heads of a group,
//                 in order
//
// p is computed again from the kept statistics in both kernels: more products, but no T x T memory and no
// synchronisation between blocks.

#include <algorithm>

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/nn/cuda/cuda_attention.h"
#include "fsdp/nn/cuda/cuda_attention_launch.h"
#include "fsdp/nn/cuda/cuda_attention_tile.h"

namespace fsdp {
namespace {

template <typename T, int kDim>
struct BackwardShared {
  HeadTile<T, kDim> q, k, v, grad_out;
  ScoreTile<T> scores;
  // By query of the tile.
  float maximum[kTile], inverse_sum[kTile], row_sum[kTile];
};

__device__ inline void Clear(ScoreSums& sums) {
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
  }
}

// Statistics of the queries from `queries` on to shared memory; past the end a sum that makes probabilities 0.
template <typename T, int kDim>
__device__ void LoadStatistics(const AttentionOperands<T>& o, int queries, bool with_row_sums,
                               BackwardShared<T, kDim>& shared) {
  for (int r = static_cast<int>(threadIdx.x); r < kTile; r += kTileThreads) {
    const int64_t row = o.first_row() + queries + r;
    const bool exists = queries + r < o.seq_len;
    shared.maximum[r] = exists ? o.Maximum(row) : 0;
    shared.inverse_sum[r] = exists ? o.InverseSum(row) : 0;
    shared.row_sum[r] = exists && with_row_sums ? o.row_sums[row] : 0;
  }
}

// Scores to probabilities. `query` and `key` are of the tile, the rest of the sequence.
template <typename T, int kDim>
__device__ float Probability(const AttentionOperands<T>& o, const BackwardShared<T, kDim>& shared, float score,
                             int query, int key, int queries, int keys) {
  if (keys + key > queries + query) return 0;
  return expf(o.math.Scaled(score) - shared.maximum[query]) * shared.inverse_sum[query];
}

// The block's tile of queries, or of keys, as operands: one chunk.
template <typename Size, typename T>
__device__ void LoadQueries(const AttentionOperands<T>& o, int queries, int chunk,
                            BackwardShared<T, Size::kDim>& shared) {
  LoadHeadTile(o.OfQkv(o.qkv, o.q_head()).template Chunk<Size::kDim>(chunk), queries, shared.q);
  LoadHeadTile(o.OfOut(o.grad_out).template Chunk<Size::kDim>(chunk), queries, shared.grad_out);
}
template <typename Size, typename T>
__device__ void LoadKeys(const AttentionOperands<T>& o, int keys, int chunk, BackwardShared<T, Size::kDim>& shared) {
  LoadHeadTile(o.OfQkv(o.qkv, o.k_head()).template Chunk<Size::kDim>(chunk), keys, shared.k);
  LoadHeadTile(o.OfQkv(o.qkv, o.v_head()).template Chunk<Size::kDim>(chunk), keys, shared.v);
}

// The calling warp's queries by the tile's keys: p and grad_p. Leaves the last chunk in shared memory.
template <typename Size, typename T>
__device__ void AlongRows(const AttentionOperands<T>& o, int queries, int keys, BackwardShared<T, Size::kDim>& shared,
                          ScoreSums& p, ScoreSums& grad_p) {
  constexpr int kDim = Size::kDim, kStride = HeadTile<T, kDim>::kStride;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  Clear(p);
  Clear(grad_p);
#pragma unroll
  for (int chunk = 0; chunk < Size::kChunks; ++chunk) {
    __syncthreads();
    if (Size::kChunks > 1) LoadQueries<Size>(o, queries, chunk, shared);
    LoadKeys<Size>(o, keys, chunk, shared);
    __syncthreads();
    MultiplyTiles<true, kTile / 8, kDim>(shared.q.at + first * kStride, kStride, shared.k.at, kStride, p);
    MultiplyTiles<true, kTile / 8, kDim>(shared.grad_out.at + first * kStride, kStride, shared.v.at, kStride, grad_p);
  }
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p[n][e] = Probability(o, shared, p[n][e], first + TileRow(e), TileColumn(n, e), queries, keys);
    }
  }
}

template <typename Size, typename T>
__global__ void __launch_bounds__(kTileThreads) GradQueries(AttentionOperands<T> o) {
  constexpr int kDim = Size::kDim, kStride = HeadTile<T, kDim>::kStride;
  auto& shared = SharedMemory<BackwardShared<T, kDim>>();
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  const int queries = BlockTile<Size::kChunks>(/*descending=*/true);
  const int chunk = BlockChunk<Size::kChunks>();
  if (Size::kChunks == 1) LoadQueries<Size>(o, queries, 0, shared);
  LoadStatistics(o, queries, /*with_row_sums=*/false, shared);

  ScoreSums p, grad_p;
  double sums[2] = {0, 0};  // of the lane's two rows
  for (int keys = 0; keys <= queries; keys += kTile) {
    AlongRows<Size>(o, queries, keys, shared, p, grad_p);
    float tile_sums[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        tile_sums[e / 2] += o.math.RoundedProbability(p[n][e]) * o.math.RoundedGrad(grad_p[n][e]);
      }
    }
    sums[0] += static_cast<double>(tile_sums[0]);
    sums[1] += static_cast<double>(tile_sums[1]);
  }
  float row_sums[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] += __shfl_xor_sync(~0u, sums[r], 1);
    row_sums[r] = static_cast<float>(sums[r] + __shfl_xor_sync(~0u, sums[r], 2));
    const int position = queries + first + TileRow(2 * r);
    if (threadIdx.x % 4 == 0 && chunk == 0 && position < o.seq_len) {
      o.row_sums[o.first_row() + position] = row_sums[r];
    }
  }

  TileSums<kDim / 8> grad_q = {};
  for (int keys = 0; keys <= queries; keys += kTile) {
    AlongRows<Size>(o, queries, keys, shared, p, grad_p);
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) p[n][e] = o.math.GradScore(p[n][e], grad_p[n][e], row_sums[e / 2]);
    }
    StoreScores(p, shared.scores);
    if (chunk != Size::kChunks - 1) {
      __syncthreads();
      LoadKeys<Size>(o, keys, chunk, shared);
      __syncthreads();
    }
    MultiplyTiles<false, kDim / 8, kTile>(shared.scores.at + first * ScoreTile<T>::kStride, ScoreTile<T>::kStride,
                                          shared.k.at, kStride, grad_q);
  }
  StoreHeadRows(grad_q, queries, o.OfQkv(o.out, o.q_head()).template Chunk<kDim>(chunk));
}

// Writes the gradient of the block's keys (part 0) or values (1): to grad_qkv or, if several heads share them, to
// head_grads, in the layout that AddHeads reads.
template <int kDim, typename T>
__device__ void StoreKeyGrads(const AttentionOperands<T>& o, const TileSums<kDim / 8>& sums, int keys, int chunk,
                              int part) {
  if (o.head_grads == nullptr) {
    StoreHeadRows(sums, keys, o.OfQkv(o.out, part == 0 ? o.k_head() : o.v_head()).template Chunk<kDim>(chunk));
    return;
  }
  const int64_t part_numel = static_cast<int64_t>(gridDim.z) * o.heads * o.seq_len * o.dim;
  const HeadRows<float> rows = {o.head_grads + part * part_numel + o.first_row() * o.dim, o.dim, o.seq_len, o.dim};
  StoreHeadRows(sums, keys, rows.template Chunk<kDim>(chunk));
}

// The calling warp's keys by the tile's queries, transposed: p and grad_p before they become scores. Leaves the last
// chunk in shared memory.
template <typename Size, typename T>
__device__ void AlongColumns(const AttentionOperands<T>& o, int queries, int keys,
                             BackwardShared<T, Size::kDim>& shared, ScoreSums& p, ScoreSums& grad_p) {
  constexpr int kDim = Size::kDim, kStride = HeadTile<T, kDim>::kStride;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  Clear(p);
  Clear(grad_p);
#pragma unroll
  for (int chunk = 0; chunk < Size::kChunks; ++chunk) {
    __syncthreads();
    if (Size::kChunks > 1) LoadKeys<Size>(o, keys, chunk, shared);
    LoadQueries<Size>(o, queries, chunk, shared);
    if (chunk == 0) LoadStatistics(o, queries, /*with_row_sums=*/true, shared);
    __syncthreads();
    MultiplyTiles<true, kTile / 8, kDim>(shared.k.at + first * kStride, kStride, shared.q.at, kStride, p);
    MultiplyTiles<true, kTile / 8, kDim>(shared.v.at + first * kStride, kStride, shared.grad_out.at, kStride, grad_p);
  }
}

template <typename Size, typename T>
__global__ void __launch_bounds__(kTileThreads) GradKeys(AttentionOperands<T> o) {
  constexpr int kDim = Size::kDim, kStride = HeadTile<T, kDim>::kStride;
  auto& shared = SharedMemory<BackwardShared<T, kDim>>();
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  const int keys = BlockTile<Size::kChunks>(/*descending=*/false);  // the first ones are seen by the most queries
  const int chunk = BlockChunk<Size::kChunks>();
  if (Size::kChunks == 1) LoadKeys<Size>(o, keys, 0, shared);
  TileSums<kDim / 8> grad_k = {}, grad_v = {};
  for (int queries = keys; queries < o.seq_len; queries += kTile) {
    ScoreSums p, grad_p;
    AlongColumns<Size>(o, queries, keys, shared, p, grad_p);
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int query = TileColumn(n, e);
        p[n][e] = Probability(o, shared, p[n][e], query, first + TileRow(e), queries, keys);
        grad_p[n][e] = o.math.GradScore(p[n][e], grad_p[n][e], shared.row_sum[query]);
      }
    }
    if (chunk != Size::kChunks - 1) {
      __syncthreads();
      LoadQueries<Size>(o, queries, chunk, shared);
      __syncthreads();
    }
    const T* scores = shared.scores.at + first * ScoreTile<T>::kStride;
    StoreScores(p, shared.scores);
    MultiplyTiles<false, kDim / 8, kTile>(scores, ScoreTile<T>::kStride, shared.grad_out.at, kStride, grad_v);
    StoreScores(grad_p, shared.scores);
    MultiplyTiles<false, kDim / 8, kTile>(scores, ScoreTile<T>::kStride, shared.q.at, kStride, grad_k);
  }
  StoreKeyGrads<kDim>(o, grad_k, keys, chunk, 0);
  StoreKeyGrads<kDim>(o, grad_v, keys, chunk, 1);
}

// If heads share keys and values: the sum over the heads of a group. Each term is first rounded if autograd, which goes
// head by head, would round it.
template <typename T>
__global__ void AddHeads(AttentionOperands<T> o, int batch) {
  const int64_t part_numel = static_cast<int64_t>(batch) * o.heads * o.seq_len * o.dim;
  const int group = o.heads / o.kv_heads;
  ForEach(static_cast<int64_t>(2) * batch * o.seq_len * o.kv_heads * o.dim, [&](int64_t i) {
    const int d = static_cast<int>(i % o.dim);
    const int kv_head = static_cast<int>(i / o.dim % o.kv_heads);
    const int64_t row = i / o.dim / o.kv_heads % (static_cast<int64_t>(batch) * o.seq_len);
    const int part = static_cast<int>(i / o.dim / o.kv_heads / (static_cast<int64_t>(batch) * o.seq_len));
    const int64_t b = row / o.seq_len;
    float sum = 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      sum += o.math.RoundedGrad(
          o.head_grads[part * part_numel + ((b * o.heads + head) * o.seq_len + row % o.seq_len) * o.dim + d]);
    }
    const int head = o.heads + part * o.kv_heads + kv_head;
    o.out[row * o.qkv_stride() + static_cast<int64_t>(head) * o.dim + d] = Round<T>(sum);
  });
}

int64_t RowSumsNumel(const AttentionShape& shape) {
  return (shape.batch * shape.num_heads * shape.seq_len + 3) / 4 * 4;
}

}  // namespace

int64_t CudaAttentionBackwardBytes(const AttentionShape& shape) {
  int64_t numel = RowSumsNumel(shape);
  if (shape.kv_heads() != shape.num_heads) numel += 2 * shape.batch * shape.num_heads * shape.seq_len * shape.head_dim;
  return numel * static_cast<int64_t>(sizeof(float));
}

void CudaCausalAttentionBackward(const Tensor& grad_out, const Tensor& qkv, const Tensor& statistics,
                                 const AttentionShape& shape, const Tensor& grad_qkv, void* workspace,
                                 CUstream_st* stream) {
  if (grad_out.numel() == 0) return;
  WithHeadType(qkv.dtype(), shape, [&](auto tag, auto size) {
    using T = typename decltype(tag)::Type;
    using Size = decltype(size);
    constexpr size_t kSharedBytes = sizeof(BackwardShared<T, Size::kDim>);
    const dim3 grid = AttentionGrid(shape, Size::kChunks);
    AttentionOperands<T> o = AttentionOperandsOf<T>(shape, qkv, statistics);
    o.grad_out = grad_out.data_as<const T>();
    o.out = grad_qkv.data_as<T>();
    o.row_sums = static_cast<float*>(workspace);
    const bool shares = shape.kv_heads() != shape.num_heads;
    if (shares) o.head_grads = o.row_sums + RowSumsNumel(shape);
    Launch(GradQueries<Size, T>, grid, kTileThreads, kSharedBytes, stream, o);
    Launch(GradKeys<Size, T>, grid, kTileThreads, kSharedBytes, stream, o);
    if (!shares) return;
    const int64_t numel = 2 * shape.batch * shape.seq_len * shape.kv_width();
    Launch(AddHeads<T>, Blocks(numel), kThreads, 0, stream, o, static_cast<int>(shape.batch));
  });
}

}  // namespace fsdp
