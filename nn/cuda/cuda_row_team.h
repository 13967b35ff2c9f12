// SPDX-License-Identifier: Apache-2.0
//
// RowTeam: the threads that work on one row of a matrix, whole warps side by side (threadIdx.x); a block has several
// teams (threadIdx.y). A row is kept in its team's registers, as at most kPacks packs of 16 bytes for each thread,
// so it is read from memory once, however often the kernel walks over it:
//
//   thread     0      1            W-1    0      1
//   row     | pack | pack | ... | pack | pack | pack | ...        W: threads of
//   the team packs     [0]    [0]           [0]    [1]    [1]
//
// Rows that are too wide for that, or not aligned to packs, are walked over in memory, element by element, by as many
// threads as a block can have. The sizes depend on the shape and the alignment only. For .cu files.
#ifndef FSDP_NN_CUDA_CUDA_ROW_TEAM_H_
#define FSDP_NN_CUDA_CUDA_ROW_TEAM_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "fsdp/cuda/block_sum.h"
#include "fsdp/cuda/pack.h"

namespace fsdp {

constexpr int kMaxTeamWarps = 32;
// Of a row that is in memory. The kernels promise it to nvcc (launch bounds), which may otherwise use so many registers
// that such a block cannot start.
constexpr int kMaxTeamThreads = kMaxTeamWarps * kWarpThreads;
// Warps of a team that keeps its row in registers.
constexpr int kMaxRegisterWarps = 8;

// The threads of a block: x of a team, y teams.
struct TeamShape {
  int warps;  // of a team
  int teams;
  bool in_registers;

  dim3 block() const { return dim3(static_cast<unsigned>(warps * kWarpThreads), static_cast<unsigned>(teams)); }
};

// For rows of `columns` elements, in blocks of about `block_warps` warps, whose threads keep `packs` packs of `pack`
// elements; `pack` is 1 if rows are not aligned to packs.
inline TeamShape TeamShapeOf(int64_t columns, int pack, int packs, int block_warps) {
  const int64_t registers = int64_t{kWarpThreads} * packs * pack;  // elements that a warp keeps
  const int64_t warps = std::max<int64_t>((columns + registers - 1) / registers, 1);
  if (pack > 1 && warps <= kMaxRegisterWarps) {
    const auto teams = std::bit_floor(static_cast<unsigned>(std::max<int64_t>(block_warps / warps, 1)));
    return {static_cast<int>(warps), static_cast<int>(teams), true};
  }
  const int64_t wide = (columns + kWarpThreads - 1) / kWarpThreads;
  return {static_cast<int>(std::clamp<int64_t>(wide, 1, kMaxTeamWarps)), 1, false};
}

// True if each row of `columns` elements of T begins aligned to a pack of 16 bytes in each of the matrices and vectors
// that begin at `operands`; null ones do not count.
template <typename T>
bool HasAlignedRows(int64_t columns, std::initializer_list<const void*> operands) {
  return columns % (kPackBytes / sizeof(T)) == 0 &&
         std::all_of(operands.begin(), operands.end(), [](const void* data) { return IsAligned(data, kPackBytes); });
}

// Calls f(p, c) for the calling thread's packs of N elements: number p begins at column c, which may be beyond the row.
// Such packs are computed like the others, as zeros, and not stored: branches around them would keep the loads of a
// thread from being in flight at the same time. Unrolled, so that `p` may be the index of an array in registers.
template <int N, int kPacks, typename F>
__device__ inline void ForRowPacks(F f) {
#pragma unroll
  for (int p = 0; p < kPacks; ++p) f(p, static_cast<int>(p * blockDim.x + threadIdx.x) * N);
}

// The pack at row[c], zeros if c is not below `columns`.
template <int N, typename T>
__device__ inline Pack<T, N> LoadRowPack(const T* row, int c, int columns) {
  return LoadPackIf<N>(c < columns, row + c);
}

template <int N, int kPacks, typename T>
__device__ inline void LoadRowPacks(const T* row, int columns, Pack<T, N> (&packs)[kPacks]) {
  ForRowPacks<N, kPacks>([&](int p, int c) { packs[p] = LoadRowPack<N>(row, c, columns); });
}

template <int N, typename T>
__device__ inline void StoreRowPack(const Pack<T, N>& pack, T* row, int c, int columns) {
  if (c < columns) StoreGlobalPack(pack, row + c);
}

// Calls f(c) for the calling thread's columns of a row in memory.
template <typename F>
__device__ inline void ForRowColumns(int columns, F f) {
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x)) f(c);
}

// Sums of kValues values over the threads of each team, in every thread of the team. The order is fixed: a butterfly
// within a warp, then the warps in order. All threads of the block must call, with `shared` in shared memory.
template <typename Sum, int kValues>
class TeamSums {
 public:
  // Memory for all teams of a block, twice: a barrier for each sum is enough if two sums do not share memory.
  struct Shared {
    Sum of[2][kMaxTeamWarps][kValues];
  };

  __device__ explicit TeamSums(Shared& shared) : shared_(shared) {}

  __device__ void AddUp(Sum (&values)[kValues]) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) values[v] = WarpSum(values[v]);
    const unsigned warps = blockDim.x / kWarpThreads;
    if (warps == 1) return;
    Sum(*team)[kValues] = shared_.of[turn_] + threadIdx.y * warps;
    turn_ ^= 1;
    if (threadIdx.x % kWarpThreads == 0) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) team[threadIdx.x / kWarpThreads][v] = values[v];
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kValues; ++v) values[v] = 0;
    for (unsigned warp = 0; warp < warps; ++warp) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) values[v] += team[warp][v];
    }
  }

 private:
  Shared& shared_;
  int turn_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ROW_TEAM_H_
