// SPDX-License-Identifier: Apache-2.0
//
// Causal attention forward. A block of 4 warps owns 64 queries of one head, 16 to a warp, and goes over the keys in
// tiles of 64 up to the diagonal, twice:
//
//   pass 1, for each tile of keys:   s = scale q k^T, masked      m = running maximum, l = running sum of e^(s - m)
//   pass 2, for each tile of keys:   s again                      p = e^(s - m) / l, rounded;  out += p v
//
// An online softmax (FlashAttention, arXiv 2205.14135) needs one pass, in which it scales `out` whenever the maximum
// grows. But then p is never a rounded probability, and the bits of a bfloat16 run differ from the host's and PyTorch's
// eager ones by more than the order of sums. The price is three products instead of two.
//
// q stays in shared memory, k and v pass through it, s is in registers as mma.h lays it out (a lane has 2 x 16 of a
// warp's 16 x 64 scores), and only p goes through shared memory, from the layout of a result to the layout of an
// operand. No T x T matrix is written.

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/nn/cuda/cuda_attention.h"
#include "fsdp/nn/cuda/cuda_attention_launch.h"
#include "fsdp/nn/cuda/cuda_attention_tile.h"

namespace fsdp {
namespace {

// The shared memory of a block: operands of the current tile, and its probabilities.
template <typename T, int kDim>
struct ForwardShared {
  HeadTile<T, kDim> q, k, v;
  ScoreTile<T> probabilities;
};

template <typename Size, typename T>
__device__ void LoadQueries(const AttentionOperands<T>& o, int queries, int chunk,
                            ForwardShared<T, Size::kDim>& shared) {
  LoadHeadTile(o.OfQkv(o.qkv, o.q_head()).template Chunk<Size::kDim>(chunk), queries, shared.q);
}

// The maximum, or the sum, over the 4 lanes that share a row.
__device__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ float QuadSum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// Statistics of a lane's two rows, TileRow(0) and TileRow(2).
struct RowStatistics {
  float maximum[2] = {-INFINITY, -INFINITY};
  double sum[2] = {0, 0};  // beyond a tile; every probability of the row has its error

  // `scores` are scaled, -inf if the query does not see the key. A query sees at least one key of every tile up to its
  // last.
  __device__ void Add(const ScoreSums& scores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tile_maximum = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
        tile_maximum = fmaxf(tile_maximum, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
      }
      const float larger = fmaxf(maximum[r], QuadMax(tile_maximum));
      float tile_sum = 0;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
        tile_sum += expf(scores[n][2 * r] - larger) + expf(scores[n][2 * r + 1] - larger);
      }
      sum[r] = sum[r] * static_cast<double>(expf(maximum[r] - larger)) + static_cast<double>(QuadSum(tile_sum));
      maximum[r] = larger;
    }
  }
};

// The calling warp's scaled scores of queries from `queries` and keys from `keys` on. All threads call; `load` loads
// the block's next operands.
template <typename Size, typename T, typename Load>
__device__ void Scores(const AttentionOperands<T>& o, int queries, int keys, ForwardShared<T, Size::kDim>& shared,
                       ScoreSums& scores, Load load) {
  constexpr int kStride = HeadTile<T, Size::kDim>::kStride;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = 0;
  }
#pragma unroll
  for (int chunk = 0; chunk < Size::kChunks; ++chunk) {
    __syncthreads();
    if (Size::kChunks > 1) LoadQueries<Size>(o, queries, chunk, shared);
    LoadHeadTile(o.OfQkv(o.qkv, o.k_head()).template Chunk<Size::kDim>(chunk), keys, shared.k);
    if (chunk == 0) load();
    __syncthreads();
    MultiplyTiles<true, kTile / 8, Size::kDim>(shared.q.at + 16 * warp * kStride, kStride, shared.k.at, kStride,
                                               scores);
  }
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool seen = keys + TileColumn(n, e) <= queries + 16 * warp + TileRow(e);
      scores[n][e] = seen ? o.math.Scaled(scores[n][e]) : -INFINITY;
    }
  }
}

template <typename Size, typename T>
__global__ void __launch_bounds__(kTileThreads) Forward(AttentionOperands<T> o) {
  constexpr int kDim = Size::kDim;
  auto& shared = SharedMemory<ForwardShared<T, kDim>>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // The queries that see the most keys come first, so that the last blocks to start are short ones.
  const int queries = BlockTile<Size::kChunks>(/*descending=*/true);
  const int chunk = BlockChunk<Size::kChunks>();
  if (Size::kChunks == 1) LoadQueries<Size>(o, queries, 0, shared);

  RowStatistics statistics;
  for (int keys = 0; keys <= queries; keys += kTile) {
    ScoreSums scores;
    Scores<Size>(o, queries, keys, shared, scores, [] {});
    statistics.Add(scores);
  }
  float inverse_sum[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    inverse_sum[r] = static_cast<float>(1 / statistics.sum[r]);
    const int position = queries + 16 * warp + TileRow(2 * r);
    if (threadIdx.x % 4 == 0 && chunk == 0 && position < o.seq_len) {
      o.StoreStatistics(o.first_row() + position, statistics.maximum[r], inverse_sum[r]);
    }
  }

  TileSums<kDim / 8> out = {};
  for (int keys = 0; keys <= queries; keys += kTile) {
    ScoreSums scores;
    Scores<Size>(o, queries, keys, shared, scores,
                 [&] { LoadHeadTile(o.OfQkv(o.qkv, o.v_head()).template Chunk<kDim>(chunk), keys, shared.v); });
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = expf(scores[n][e] - statistics.maximum[e / 2]) * inverse_sum[e / 2];
    }
    StoreScores(scores, shared.probabilities);
    MultiplyTiles<false, kDim / 8, kTile>(shared.probabilities.at + 16 * warp * ScoreTile<T>::kStride,
                                          ScoreTile<T>::kStride, shared.v.at, HeadTile<T, kDim>::kStride, out);
  }
  StoreHeadRows(out, queries, o.OfOut(o.out).template Chunk<kDim>(chunk));
}

}  // namespace

void CudaCausalAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         CUstream_st* stream) {
  if (out.numel() == 0) return;
  WithHeadType(qkv.dtype(), shape, [&](auto tag, auto size) {
    using T = typename decltype(tag)::Type;
    using Size = decltype(size);
    AttentionOperands<T> o = AttentionOperandsOf<T>(shape, qkv, statistics);
    o.out = out.data_as<T>();
    Launch(Forward<Size, T>, AttentionGrid(shape, Size::kChunks), kTileThreads, sizeof(ForwardShared<T, Size::kDim>),
           stream, o);
  });
}

}  // namespace fsdp
