// SPDX-License-Identifier: Apache-2.0
//
// Forward. A warp owns 16 kM queries of one head, and its block goes over the keys in tiles of 64 up to the diagonal,
// once:
//
//   for each tile:   s = q k^T, masked      m' = max(m, row maxima of s)      p = e^(scale (s - m'))
//                    l = l e^(scale (m - m')) + row sums of p                 out = out e^(scale (m - m')) + round(p) v
//   at the end:      out / l                                                 log_sum_exp = scale m + log l
//
// Exponentials are to base 2, with scale log2(e) folded into one multiply-add. A tile's keys and values are copied
// during the computation with the previous tile. kM is 2 if the registers allow it: each fragment of k and v that a
// warp reads from shared memory then serves two products.

#include <algorithm>

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/fast_math.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/nn/cuda/cuda_online_attention.h"
#include "fsdp/nn/cuda/cuda_online_tile.h"

namespace fsdp {
namespace {

template <typename T, int kHeadDim>
struct ForwardShared {
  static constexpr int kDim = kHeadDim;
  static constexpr int kM = kDim <= 128 ? 2 : 1;
  static constexpr int kQueries = 16 * kTileWarps * kM;
  static constexpr int kStages = kDim <= 128 ? 2 : 1;  // 163 KB on sm_80
  static constexpr int kStride = TileStride<T>(kDim);
  static constexpr int kBlocks = kDim <= 128 ? 2 : 1;  // on a multiprocessor

  T queries[kQueries * kStride];
  T keys[kStages][kTile * kStride];
  T values[kStages][kTile * kStride];
};

// The maximum, or the sum, over the 4 lanes that share a row.
__device__ inline float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ inline float QuadSum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// -infinity for the keys that a query does not see. `first_query` is the warp's.
template <int kM>
__device__ inline void Mask(int first_query, int first_key, float (&scores)[kM][kTile / 8][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first_key + TileColumn(n, e) > first_query + 16 * m + TileRow(e)) scores[m][n][e] = -INFINITY;
      }
    }
  }
}

// The softmax of a lane's rows, two for each m, and its effect on a tile's scores.
template <int kM, int kN>
struct OnlineSoftmax {
  float maximum[kM][2];  // of the scores, not scaled
  float sum[kM][2];      // of the lane's own columns
  float out[kM][kN][4];

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        maximum[m][r] = -INFINITY;
        sum[m][r] = 0;
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][n][e] = 0;
      }
    }
  }

  // Scores become probabilities, not divided yet. A query sees a key of the first tile, so its maximum is finite.
  __device__ void Add(float scale_log2, float (&scores)[kM][kTile / 8][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float larger = maximum[m][r];
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) larger = fmaxf(larger, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
        larger = QuadMax(larger);
        const float shift = larger * scale_log2;
        const float factor = FastExp2(fmaf(maximum[m][r], scale_log2, -shift));
        maximum[m][r] = larger;
        float tile_sum = 0;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            scores[m][n][e] = FastExp2(fmaf(scores[m][n][e], scale_log2, -shift));
            tile_sum += scores[m][n][e];
          }
        }
        sum[m][r] = fmaf(sum[m][r], factor, tile_sum);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          out[m][n][2 * r] *= factor;
          out[m][n][2 * r + 1] *= factor;
        }
      }
    }
  }
};

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kTileThreads, ForwardShared<T, kHeadDim>::kBlocks) Forward(OnlineOperands<T> o) {
  using Shared = ForwardShared<T, kHeadDim>;
  constexpr int kDim = kHeadDim, kM = Shared::kM, kStages = Shared::kStages, kStride = Shared::kStride;
  auto& shared = SharedMemory<Shared>();
  const int head = static_cast<int>(blockIdx.x) % o.heads, sequence = static_cast<int>(blockIdx.x) / o.heads;
  // The queries that see the most keys come first, so that the last blocks to start are short ones.
  const int queries = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Shared::kQueries;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_query = queries + 16 * kM * warp;
  T* const own_queries = shared.queries + 16 * kM * warp * kStride;
  const int k_head = o.heads + head / (o.heads / o.kv_heads);
  LoadTile<kDim, Shared::kQueries>(o.OfQkv(o.qkv, sequence, head), queries, o.aligned, shared.queries);

  OnlineSoftmax<kM, kDim / 8> softmax;
  const int seen = std::min(queries + Shared::kQueries, o.seq_len);
  ForEachTile<kStages>(
      (seen + kTile - 1) / kTile,
      [&](int tile, int stage) {
        LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, k_head), tile * kTile, o.aligned, shared.keys[stage]);
        LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, k_head + o.kv_heads), tile * kTile, o.aligned,
                              shared.values[stage]);
      },
      [&](int tile, int stage) {
        const int first_key = tile * kTile;
        if (first_key >= first_query + 16 * kM) return;  // the warp's queries see none of the keys
        float scores[kM][kTile / 8][4];
        MultiplyByRows<kM, kTile / 8, kDim>(RowsInMemory<kDim, T>{own_queries}, shared.keys[stage], scores);
        if (first_key + kTile > first_query) Mask(first_query, first_key, scores);
        softmax.Add(o.scale_log2, scores);
        AddWeightedRows(scores, shared.values[stage], kStride, softmax.out);
      });

  float inverse_sums[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = QuadSum(softmax.sum[m][r]);
      inverse_sums[m][r] = Reciprocal(sum);  // at least 1: the largest score's term
      const int position = first_query + 16 * m + TileRow(2 * r);
      if (threadIdx.x % 4 == 0 && position < o.seq_len) {
        o.log_sum_exp[o.FirstRow(sequence, head) + position] = fmaf(softmax.maximum[m][r], o.scale, logf(sum));
      }
    }
  }
  StoreRows<kStride>(softmax.out, inverse_sums, own_queries, first_query, o.aligned, o.OfOut(o.result, sequence, head));
}

}  // namespace

void CudaOnlineAttention(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
                         CUstream_st* stream) {
  if (out.numel() == 0) return;
  WithOnlineHead(qkv.dtype(), shape.head_dim, [&](auto tag, auto dim) {
    using T = typename decltype(tag)::Type;
    constexpr int kDim = decltype(dim)::kValue;
    OnlineOperands<T> o = OnlineOperandsOf<T>(shape, qkv, statistics);
    o.result = out.data_as<T>();
    o.aligned = HaveAlignedRows(shape.head_dim, {o.qkv, o.result});
    using Shared = ForwardShared<T, kDim>;
    Launch(Forward<T, kDim>, OnlineGrid(shape, shape.num_heads, Shared::kQueries), kTileThreads, sizeof(Shared), stream,
           o);
  });
}

}  // namespace fsdp
