// SPDX-License-Identifier: Apache-2.0
//
// Backward without atomic additions, whose order would differ from run to run. The places of the tokens are sorted by
// token, then by place, so that the rows that belong to one row of the table are a segment:
//
//   tokens   5 7 5 5 7        sorted   5@0 5@2 5@3 7@1 7@4
//
// SortTiles sorts tiles of 2,048 keys in shared memory. MergeTiles finds a key's place among all: its place in its tile
// and, by binary search, the number of smaller keys in each other tile; keys are distinct. Segments are summed in
// parallel, and long ones in runs (layer_ops.h): SumRuns has a warp for each place in `sorted` and run of columns,
// which returns unless a run begins there. AddRuns adds the runs of each segment of several.

#include <type_traits>

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/refuse_value.h"
#include "fsdp/nn/cuda/cuda_embedding.h"

namespace fsdp {
namespace {

constexpr int kWarpsPerBlock = 4;
// Packs of a copied row that each lane loads before it stores.
constexpr int kPacksInFlight = 4;

// A warp for each token copies its row.
template <int N, typename T>
__global__ void Gather(const int32_t* tokens, int64_t count, const T* table, int64_t table_rows, int64_t columns,
                       T* out, KernelRefusal* refusal) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  if (n >= count) return;
  const int32_t token = tokens[n];
  if (token < 0 || token >= table_rows) {
    if (threadIdx.x == 0) RefuseValue(refusal, {0, KernelRefusal::kToken, token, n, count, table_rows});
    return;
  }
  const T* row = table + token * columns;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * N; first < columns;
       first += kPacksInFlight * kWarpThreads * N) {
    Pack<T, N> packs[kPacksInFlight];
#pragma unroll
    for (int p = 0; p < kPacksInFlight; ++p) {
      const int64_t c = first + p * kWarpThreads * N;
      packs[p] = LoadPackIf<N>(c < columns, row + c);
    }
#pragma unroll
    for (int p = 0; p < kPacksInFlight; ++p) {
      const int64_t c = first + p * kWarpThreads * N;
      if (c < columns) StoreGlobalPack(packs[p], out + n * columns + c);
    }
  }
}

// A token and its place: the order of the sums. Tokens that get no gradient, those beyond the table and padding, are
// kNoToken, after all others.
using Key = uint64_t;
constexpr uint32_t kNoToken = ~uint32_t{0};

__device__ Key KeyOf(uint32_t token, int64_t place) { return Key{token} << 32 | static_cast<uint32_t>(place); }
__device__ uint32_t TokenOf(Key key) { return static_cast<uint32_t>(key >> 32); }
__device__ uint32_t PlaceOf(Key key) { return static_cast<uint32_t>(key); }

constexpr int kTileThreads = 1024;
constexpr int kTileKeys = 2 * kTileThreads;

int64_t Tiles(int64_t count) { return (count + kTileKeys - 1) / kTileKeys; }

struct Tile {
  Key keys[kTileKeys];
};

// A block for each tile: a bitonic sort, whose steps each compare and swap kTileThreads pairs. The last tile is filled
// up with keys that are larger than all others.
__global__ void __launch_bounds__(kTileThreads)
    SortTiles(const int32_t* tokens, int64_t count, int64_t padding_idx, int64_t table_rows, Key* sorted) {
  auto& tile = SharedMemory<Tile>();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTileKeys;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys; i += kTileThreads) {
    const int64_t place = begin + i;
    const int64_t token = place < count ? tokens[place] : -1;
    const bool has_row = token >= 0 && token < table_rows && token != padding_idx;
    tile.keys[i] = KeyOf(has_row ? static_cast<uint32_t>(token) : kNoToken, place);
  }
  __syncthreads();
  for (unsigned size = 2; size <= kTileKeys; size *= 2) {
    for (unsigned distance = size / 2; distance > 0; distance /= 2) {
      const unsigned i = 2 * threadIdx.x - (threadIdx.x & (distance - 1));
      const Key a = tile.keys[i], b = tile.keys[i + distance];
      if ((a > b) == ((i & size) == 0)) {
        tile.keys[i] = b;
        tile.keys[i + distance] = a;
      }
      __syncthreads();
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys; i += kTileThreads) sorted[begin + i] = tile.keys[i];
}

// The number of keys below `key` among the `count` sorted ones.
__device__ int64_t CountBelow(const Key* sorted, int64_t count, Key key) {
  int64_t below = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    if (sorted[below + half] < key) {
      below += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return below;
}

__global__ void MergeTiles(const Key* tiles, int64_t num_tiles, int64_t count, Key* sorted) {
  ForEach(num_tiles * kTileKeys, [&](int64_t i) {
    const Key key = tiles[i];
    const int64_t own = i / kTileKeys;
    int64_t rank = i % kTileKeys;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      if (tile != own) rank += CountBelow(tiles + tile * kTileKeys, kTileKeys, key);
    }
    if (rank < count) sorted[rank] = key;
  });
}

// Rows of a run: float32 sums of 32 rows, or 16-bit sums of 256, each rounded.
template <typename T>
constexpr int64_t kRunRows = std::is_same_v<T, float> ? 32 : 256;

constexpr int kRowsInFlight = 8;

template <typename T>
struct SumOperands {
  const Key* sorted;
  int64_t count;
  const T* grad_out;
  T* grad_table;
  // Sums of the runs of segments that have several, [2, slots, columns]: of first runs, then of the others. A run that
  // begins at i has slot i / kRunRows, in which no other run of its kind begins, as all of them but the last are full.
  float* runs;
  int64_t slots;
  int64_t columns;

  // True if `token` is at `i` of `sorted` too.
  __device__ bool Continues(int64_t i, uint32_t token) const { return i < count && TokenOf(sorted[i]) == token; }
};

// True if a run begins at i, and if it is its segment's first.
template <typename T>
__device__ bool BeginsRun(const SumOperands<T>& o, int64_t i, uint32_t token, bool& is_first) {
  is_first = i == 0 || TokenOf(o.sorted[i - 1]) != token;
  if (is_first) return true;
  if (i < kRunRows<T> || TokenOf(o.sorted[i - kRunRows<T>]) != token) return false;
  return (i - CountBelow(o.sorted, i, KeyOf(token, 0))) % kRunRows<T> == 0;
}

template <int N, typename T>
__device__ void AddToRow(const double (&total)[N], T* grad) {
  float sum[N];
  WidenPack(LoadPack<N>(grad), sum);
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] += static_cast<float>(total[k]);
  StoreGlobalPack(RoundPack<T>(sum), grad);
}

template <int N, typename T>
__global__ void __launch_bounds__(kWarpThreads* kWarpsPerBlock, 8) SumRuns(SumOperands<T> o) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kWarpThreads + threadIdx.x) * N;
  if (i >= o.count || c >= o.columns) return;
  const uint32_t token = TokenOf(o.sorted[i]);
  bool is_first;
  if (token == kNoToken || !BeginsRun(o, i, token, is_first)) return;
  float run[N] = {};
  for (int64_t row = 0; row < kRunRows<T> && o.Continues(i + row, token); row += kRowsInFlight) {
    int64_t places[kRowsInFlight];  // -1 beyond the segment
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      const Key key = i + row + r < o.count ? o.sorted[i + row + r] : KeyOf(kNoToken, 0);
      places[r] = TokenOf(key) == token ? int64_t{PlaceOf(key)} : -1;
    }
    Pack<T, N> packs[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      packs[r] = LoadPackIf<N>(places[r] >= 0, o.grad_out + places[r] * o.columns + c);
    }
    // Zeros change no sum, and a branch around them would make the loads wait for each other.
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      float values[N];
      WidenPack(packs[r], values);
#pragma unroll
      for (int k = 0; k < N; ++k) run[k] = RoundTo<T>(run[k] + values[k]);
    }
  }
  if (is_first && !o.Continues(i + kRunRows<T>, token)) {
    double total[N];
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] = static_cast<double>(run[k]);
    AddToRow(total, o.grad_table + token * o.columns + c);
    return;
  }
  float* sums = o.runs + ((is_first ? 0 : o.slots) + i / kRunRows<T>)*o.columns + c;
#pragma unroll
  for (int k = 0; k < N; ++k) sums[k] = run[k];
}

// A warp for each slot and run of columns: if a segment of several runs begins there, adds its runs in order.
template <int N, typename T>
__global__ void AddRuns(SumOperands<T> o) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.y;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kWarpThreads + threadIdx.x) * N;
  if (slot >= o.slots) return;
  int64_t begin = -1;
  for (int64_t i = slot * kRunRows<T> + threadIdx.x; i < (slot + 1) * kRunRows<T>; i += kWarpThreads) {
    const uint32_t token = i < o.count ? TokenOf(o.sorted[i]) : kNoToken;
    const bool begins =
        token != kNoToken && (i == 0 || TokenOf(o.sorted[i - 1]) != token) && o.Continues(i + kRunRows<T>, token);
    const unsigned lanes = __ballot_sync(kAllLanes, begins);
    if (lanes != 0) begin = i - threadIdx.x + __ffs(static_cast<int>(lanes)) - 1;
  }
  if (begin < 0 || c >= o.columns) return;
  const uint32_t token = TokenOf(o.sorted[begin]);
  double total[N];
#pragma unroll
  for (int k = 0; k < N; ++k) total[k] = static_cast<double>(o.runs[slot * o.columns + c + k]);
  for (int64_t i = begin + kRunRows<T>; o.Continues(i, token); i += kRunRows<T>) {
    const float* sums = o.runs + (o.slots + i / kRunRows<T>)*o.columns + c;
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] += static_cast<double>(sums[k]);
  }
  AddToRow(total, o.grad_table + token * o.columns + c);
}

template <int N, typename T>
bool HasPacks(int64_t columns, const Tensor& a, const Tensor& b) {
  return columns % N == 0 && IsAligned(a.data(), sizeof(T) * N) && IsAligned(b.data(), sizeof(T) * N);
}

unsigned WarpBlocks(int64_t warps) { return static_cast<unsigned>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock); }

template <int N, typename T>
void LaunchSums(const SumOperands<T>& o, CUstream_st* stream) {
  const auto tiles = static_cast<unsigned>((o.columns + kWarpThreads * N - 1) / (kWarpThreads * N));
  const dim3 block(kWarpThreads, kWarpsPerBlock);
  Launch(SumRuns<N, T>, dim3(WarpBlocks(o.count), tiles), block, 0, stream, o);
  Launch(AddRuns<N, T>, dim3(WarpBlocks(o.slots), tiles), block, 0, stream, o);
}

int64_t Slots(int64_t count, DType dtype) {
  const int64_t rows = dtype == DType::kFloat32 ? kRunRows<float> : kRunRows<__nv_bfloat16>;
  return (count + rows - 1) / rows;
}

}  // namespace

void CudaEmbedding(const Tensor& tokens, const Tensor& table, const Tensor& out, KernelRefusal* refusal,
                   CUstream_st* stream) {
  const int64_t columns = table.shape().dim(1);
  const int64_t count = tokens.numel();
  if (count == 0) return;
  WithActivationType(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    const auto kernel = HasPacks<kPack, T>(columns, table, out) ? Gather<kPack, T> : Gather<1, T>;
    Launch(kernel, WarpBlocks(count), dim3(kWarpThreads, kWarpsPerBlock), 0, stream, tokens.data_as<const int32_t>(),
           count, table.data_as<const T>(), table.shape().dim(0), columns, out.data_as<T>(), refusal);
  });
}

// The tiles, the sorted keys, the runs.
int64_t EmbeddingBackwardBytes(int64_t num_tokens, int64_t columns, DType dtype) {
  const auto keys = (Tiles(num_tokens) * kTileKeys + num_tokens) * static_cast<int64_t>(sizeof(Key));
  return keys + 2 * Slots(num_tokens, dtype) * columns * static_cast<int64_t>(sizeof(float));
}

void CudaEmbeddingBackward(const Tensor& tokens, const Tensor& grad_out, std::optional<int64_t> padding_idx,
                           const Tensor& grad_table, void* workspace, CUstream_st* stream) {
  const int64_t count = tokens.numel(), rows = grad_table.shape().dim(0), columns = grad_table.shape().dim(1);
  if (count == 0 || grad_table.numel() == 0) return;
  const int64_t num_tiles = Tiles(count);
  auto* const tiles = static_cast<Key*>(workspace);
  Key* const sorted = tiles + num_tiles * kTileKeys;
  Launch(SortTiles, static_cast<unsigned>(num_tiles), kTileThreads, sizeof(Tile), stream,
         tokens.data_as<const int32_t>(), count, padding_idx.value_or(-1), rows, tiles);
  Launch(MergeTiles, Blocks(num_tiles * kTileKeys), kThreads, 0, stream, tiles, num_tiles, count, sorted);
  WithActivationType(grad_out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    const SumOperands<T> o = {.sorted = sorted,
                              .count = count,
                              .grad_out = grad_out.data_as<const T>(),
                              .grad_table = grad_table.data_as<T>(),
                              .runs = reinterpret_cast<float*>(sorted + count),
                              .slots = Slots(count, grad_out.dtype()),
                              .columns = columns};
    if (HasPacks<kPack, T>(columns, grad_out, grad_table)) {
      LaunchSums<kPack>(o, stream);
    } else {
      LaunchSums<1>(o, stream);
    }
  });
}

}  // namespace fsdp
