// SPDX-License-Identifier: Apache-2.0
//
// Backward. p = e^(scale s - log_sum_exp), and ds = p (dp - D) with D the row sum of grad_out out, are computed again
// in both large kernels, 7 products instead of 5, so that no float is added by an atomic operation, whose order would
// differ from run to run:
//
//   ScoreRows     log_sum_exp to base 2, and D, of each row
//   GradQueries   a block owns 64 queries; over the tiles of keys:
//                   s = q k^T       dp = grad_out v^T        grad_q += ds k
//   GradKeys      a block owns 64 keys; over the heads of q that share them, and the tiles of queries from the
//   diagonal:
//                   s = k q^T       dp = v grad_out^T        grad_v += p grad_out      grad_k += ds q
//
// Scores are [own rows, other rows] in both, so that p and ds are the left operands of the next products, in registers.
// grad_q and grad_k are multiplied by the scale at the end.

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/fast_math.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/nn/cuda/cuda_online_attention.h"
#include "fsdp/nn/cuda/cuda_online_tile.h"

namespace fsdp {
namespace {

// Lanes of a row of ScoreRows.
constexpr int kRowLanes = 8;
constexpr int kRowThreads = 256;

// Elements from `c` on of a row of `dim`, with zeros beyond its end.
template <typename T>
__device__ inline Pack<T, kHalfPack> LoadPackOf(const T* row, int c, int dim, bool aligned) {
  if (aligned) return LoadPack<kHalfPack>(row + c);
  Pack<T, kHalfPack> pack;
#pragma unroll
  for (int k = 0; k < kHalfPack; ++k) pack.at[k] = c + k < dim ? row[c + k] : Round<T>(0.0f);
  return pack;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads) ScoreRows(OnlineOperands<T> o, int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int64_t own = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kRowLanes;
  const int64_t row = own < rows ? own : rows - 1;  // all lanes come to the shuffles
  const T* grad_out = o.grad_out + row * o.dim;
  const T* out = o.out + row * o.dim;
  float sum = 0;
  for (int c = lane * kHalfPack; c < o.dim; c += kRowLanes * kHalfPack) {
    const auto a = LoadPackOf(grad_out, c, o.dim, o.aligned);
    const auto b = LoadPackOf(out, c, o.dim, o.aligned);
#pragma unroll
    for (int k = 0; k < kHalfPack; ++k) sum = fmaf(Widen<float>(a.at[k]), Widen<float>(b.at[k]), sum);
  }
#pragma unroll
  for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (lane != 0 || own >= rows) return;
  // Rows of out are [batch, seq_len, heads], rows of scores [batch, heads, seq_len].
  const int head = static_cast<int>(row % o.heads);
  const int64_t position = row / o.heads;
  const int64_t score_row = o.FirstRow(static_cast<int>(position / o.seq_len), head) + position % o.seq_len;
  o.rows[score_row] = {o.log_sum_exp[score_row] * kLog2E, sum};
}

template <typename T, int kDim>
struct BackwardSizes {
  static constexpr int kStride = TileStride<T>(kDim);
  static constexpr int kStages = kDim <= 128 ? 2 : 1;
  // Blocks on a multiprocessor, which bound the registers: 168 for each thread, 255.
  static constexpr int kBlocks = kDim <= 64 ? 3 : kDim <= 128 ? 2 : 1;
  // Columns of its results that a block of GradKeys owns; with more than 128 their sums would not fit the registers,
  // and blocks share the work by chunks of columns, each with its own scores.
  static constexpr int kColumns = kDim <= 128 ? kDim : 128;
  static constexpr int kChunks = kDim / kColumns;
};

template <typename T, int kDim>
struct GradQueriesShared : BackwardSizes<T, kDim> {
  using Sizes = BackwardSizes<T, kDim>;
  T queries[kTile * Sizes::kStride];
  T grad_out[kTile * Sizes::kStride];
  T keys[Sizes::kStages][kTile * Sizes::kStride];
  T values[Sizes::kStages][kTile * Sizes::kStride];
};

// The block's own rows, in both kernels: in registers if there are enough.
template <typename T, int kDim>
struct OwnRows {
  RowsInMemory<kDim, T> rows;
  __device__ explicit OwnRows(const T* tile) : rows{tile} {}
  __device__ MmaA operator()(int m, int k) const { return rows(m, k); }
};

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kTileThreads, (BackwardSizes<T, kHeadDim>::kBlocks))
    GradQueries(OnlineOperands<T> o) {
  using Shared = GradQueriesShared<T, kHeadDim>;
  constexpr int kDim = kHeadDim, kStride = Shared::kStride;
  auto& shared = SharedMemory<Shared>();
  const int head = static_cast<int>(blockIdx.x) % o.heads, sequence = static_cast<int>(blockIdx.x) / o.heads;
  const int queries = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTile;  // the longest first
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;                 // row of the tile
  const int k_head = o.heads + head / (o.heads / o.kv_heads);
  LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, head), queries, o.aligned, shared.queries);
  LoadTile<kDim, kTile>(o.OfOut(o.grad_out, sequence, head), queries, o.aligned, shared.grad_out);
  ScoreRow rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = queries + first + TileRow(2 * r);
    rows[r] = position < o.seq_len ? o.rows[o.FirstRow(sequence, head) + position] : ScoreRow{0, 0};
  }
  float grad_q[1][kDim / 8][4] = {};
  ForEachTile<Shared::kStages>(
      queries / kTile + 1,
      [&](int tile, int stage) {
        LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, k_head), tile * kTile, o.aligned, shared.keys[stage]);
        LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, k_head + o.kv_heads), tile * kTile, o.aligned,
                              shared.values[stage]);
      },
      [&](int tile, int stage) {
        float p[1][kTile / 8][4], grad_p[1][kTile / 8][4];
        MultiplyByRows<1, kTile / 8, kDim>(OwnRows<T, kDim>(shared.queries + first * kStride), shared.keys[stage], p);
        const bool diagonal = tile * kTile == queries;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            p[0][n][e] = FastExp2(fmaf(p[0][n][e], o.scale_log2, -rows[e / 2].log2_sum_exp));
            if (diagonal && TileColumn(n, e) > first + TileRow(e)) p[0][n][e] = 0;
          }
        }
        MultiplyByRows<1, kTile / 8, kDim>(OwnRows<T, kDim>(shared.grad_out + first * kStride), shared.values[stage],
                                           grad_p);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) grad_p[0][n][e] = p[0][n][e] * (grad_p[0][n][e] - rows[e / 2].grad_dot_out);
        }
        AddWeightedRows(grad_p, shared.keys[stage], kStride, grad_q);
      });
  StoreRows<kStride>(grad_q, {{o.scale, o.scale}}, shared.queries + first * kStride, queries + first, o.aligned,
                     o.OfQkv(o.result, sequence, head));
}

template <typename T, int kDim>
struct GradKeysShared : BackwardSizes<T, kDim> {
  using Sizes = BackwardSizes<T, kDim>;
  T keys[kTile * Sizes::kStride];
  T values[kTile * Sizes::kStride];
  T queries[Sizes::kStages][kTile * Sizes::kStride];
  T grad_out[Sizes::kStages][kTile * Sizes::kStride];
  ScoreRow rows[Sizes::kStages][kTile];
};

// Starts to copy the rows from `begin` on of a head whose first is `rows`. Beyond the last one they are zeros, which
// with the zeros of queries and grad_out add nothing.
__device__ inline void LoadScoreRows(const ScoreRow* rows, int begin, int seq_len, ScoreRow* tile) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kTile) return;
  const bool exists = begin + r < seq_len;
  CopyAsync<sizeof(ScoreRow)>(tile + r, exists ? rows + begin + r : rows, exists);
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kTileThreads, (BackwardSizes<T, kHeadDim>::kBlocks)) GradKeys(OnlineOperands<T> o) {
  using Shared = GradKeysShared<T, kHeadDim>;
  constexpr int kDim = kHeadDim, kStride = Shared::kStride, kColumns = Shared::kColumns;
  auto& shared = SharedMemory<Shared>();
  const int kv_head = static_cast<int>(blockIdx.x) % o.kv_heads, sequence = static_cast<int>(blockIdx.x) / o.kv_heads;
  const int keys = static_cast<int>(blockIdx.y) / Shared::kChunks * kTile;  // the first ones are seen by the most
  const int column = static_cast<int>(blockIdx.y) % Shared::kChunks * kColumns;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;  // row of the tile
  const int group = o.heads / o.kv_heads;
  LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, o.heads + kv_head), keys, o.aligned, shared.keys);
  LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, o.heads + o.kv_heads + kv_head), keys, o.aligned, shared.values);
  const int tiles = (o.seq_len - keys + kTile - 1) / kTile;  // of queries, for each head
  // The next head and tile of queries to load, and the number of the tile to compute with.
  int head = kv_head * group, queries = keys, tile = 0;
  float grad_k[1][kColumns / 8][4] = {}, grad_v[1][kColumns / 8][4] = {};
  ForEachTile<Shared::kStages>(
      group * tiles,
      [&](int, int stage) {
        LoadTile<kDim, kTile>(o.OfQkv(o.qkv, sequence, head), queries, o.aligned, shared.queries[stage]);
        LoadTile<kDim, kTile>(o.OfOut(o.grad_out, sequence, head), queries, o.aligned, shared.grad_out[stage]);
        LoadScoreRows(o.rows + o.FirstRow(sequence, head), queries, o.seq_len, shared.rows[stage]);
        queries += kTile;
        if (queries >= o.seq_len) {
          queries = keys;
          ++head;
        }
      },
      [&](int, int stage) {
        float p[1][kTile / 8][4], grad_p[1][kTile / 8][4];
        MultiplyByRows<1, kTile / 8, kDim>(OwnRows<T, kDim>(shared.keys + first * kStride), shared.queries[stage], p);
        const bool diagonal = tile == 0;
        tile = tile + 1 == tiles ? 0 : tile + 1;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            p[0][n][e] = FastExp2(fmaf(p[0][n][e], o.scale_log2, -shared.rows[stage][TileColumn(n, e)].log2_sum_exp));
            if (diagonal && first + TileRow(e) > TileColumn(n, e)) p[0][n][e] = 0;
          }
        }
        AddWeightedRows(p, shared.grad_out[stage] + column, kStride, grad_v);
        MultiplyByRows<1, kTile / 8, kDim>(OwnRows<T, kDim>(shared.values + first * kStride), shared.grad_out[stage],
                                           grad_p);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            grad_p[0][n][e] = p[0][n][e] * (grad_p[0][n][e] - shared.rows[stage][TileColumn(n, e)].grad_dot_out);
          }
        }
        AddWeightedRows(grad_p, shared.queries[stage] + column, kStride, grad_k);
      });
  const auto chunk = [column](HeadRows<T> rows) {
    return HeadRows<T>{rows.first + column, rows.stride, rows.seq_len, rows.dim - column};
  };
  StoreRows<kStride>(grad_k, {{o.scale, o.scale}}, shared.keys + first * kStride, keys + first, o.aligned,
                     chunk(o.OfQkv(o.result, sequence, o.heads + kv_head)));
  StoreRows<kStride>(grad_v, {{1, 1}}, shared.values + first * kStride, keys + first, o.aligned,
                     chunk(o.OfQkv(o.result, sequence, o.heads + o.kv_heads + kv_head)));
}

}  // namespace

int64_t CudaOnlineAttentionBackwardBytes(const AttentionShape& shape) {
  return shape.score_rows() * static_cast<int64_t>(sizeof(ScoreRow));
}

void CudaOnlineAttentionBackward(const OnlineAttentionResults& results, const AttentionShape& shape,
                                 const Tensor& grad_qkv, void* workspace, CUstream_st* stream) {
  if (grad_qkv.numel() == 0) return;
  WithOnlineHead(grad_qkv.dtype(), shape.head_dim, [&](auto tag, auto dim) {
    using T = typename decltype(tag)::Type;
    constexpr int kDim = decltype(dim)::kValue;
    OnlineOperands<T> o = OnlineOperandsOf<T>(shape, results.qkv, results.statistics);
    o.grad_out = results.grad_out.template data_as<const T>();
    o.out = results.out.template data_as<const T>();
    o.result = grad_qkv.data_as<T>();
    o.rows = static_cast<ScoreRow*>(workspace);
    o.aligned = HaveAlignedRows(shape.head_dim, {o.qkv, o.grad_out, o.out, o.result});
    const int64_t rows = shape.score_rows();
    constexpr int kRows = kRowThreads / kRowLanes;  // of a block
    Launch(ScoreRows<T>, static_cast<unsigned>((rows + kRows - 1) / kRows), kRowThreads, 0, stream, o, rows);
    Launch(GradQueries<T, kDim>, OnlineGrid(shape, shape.num_heads, kTile), kTileThreads,
           sizeof(GradQueriesShared<T, kDim>), stream, o);
    dim3 grid = OnlineGrid(shape, shape.kv_heads(), kTile);
    grid.y *= BackwardSizes<T, kDim>::kChunks;
    Launch(GradKeys<T, kDim>, grid, kTileThreads, sizeof(GradKeysShared<T, kDim>), stream, o);
  });
}

}  // namespace fsdp
