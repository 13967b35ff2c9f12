// SPDX-License-Identifier: Apache-2.0
//
// Pack: the elements that a thread loads and stores in one instruction, and how elementwise kernels cut their work:
//
//   elements      | . . | x x x x | x x x x | x x x x | . |
//                  head   packs                        rest       . single elements, x packs
//
// Elements one by one up to the first that is aligned in all operands, then whole packs, then the rest one by one.
// Operands that are never aligned together are processed one by one throughout. Parameters are views of flat buffers at
// any element, so alignment is not guaranteed, and a kernel that is limited by memory needs wide accesses. For .cu
// files.
#ifndef FSDP_CUDA_PACK_H_
#define FSDP_CUDA_PACK_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace fsdp {

// N elements, aligned to their size together, which is at most kPackBytes. N is a power of two.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

// The widest access of a GPU.
constexpr size_t kPackBytes = 16;

// Threads of a block of an elementwise kernel, and the maximum number of blocks: the kernels step by the whole grid, so
// any number of blocks does all the work.
constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;

// Blocks for `threads` threads; at least 1, as a launch needs.
inline int Blocks(int64_t threads) {
  return static_cast<int>(std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMaxBlocks));
}

// True if the address is a multiple of `to` bytes; null is.
inline bool IsAligned(const void* data, size_t to) { return reinterpret_cast<uintptr_t>(data) % to == 0; }

// `numel` elements as `head` single ones, `packs` packs, and single ones again.
struct PackedRange {
  int64_t head = 0;
  int64_t packs = 0;
  int64_t numel = 0;

  // The number of threads with work, if each takes `packs_each` packs or one single element.
  int64_t threads(int pack, int packs_each = 1) const {
    return std::max((packs + packs_each - 1) / packs_each, numel - packs * pack);
  }
};

// An operand of MakePackedRange, at its element 0.
struct PackOperand {
  const void* data;  // null: no operand
  size_t element_bytes;
};

// The longest run of packs of `pack` elements that are aligned in all operands; no packs if there is no such run. Tries
// each of the first `pack` elements as the first one of the run.
inline PackedRange MakePackedRange(int pack, int64_t numel, std::initializer_list<PackOperand> operands) {
  for (int64_t head = 0; head < std::min<int64_t>(pack, numel); ++head) {
    const bool aligned = std::all_of(operands.begin(), operands.end(), [&](const PackOperand& operand) {
      return operand.data == nullptr || IsAligned(static_cast<const char*>(operand.data) + head * operand.element_bytes,
                                                  operand.element_bytes * pack);
    });
    if (aligned) return {head, (numel - head) / pack, numel};
  }
  return {0, 0, numel};
}

// Calls f(i) for the calling thread's share of [0, n).
template <typename F>
__device__ inline void ForEach(int64_t n, F f) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

// The number of elements of a call of ForEachPack's body, as a constant.
template <int N>
struct PackSize {
  static constexpr int kSize = N;
};

// Calls f(PackSize<N>(), i) for the packs, f(PackSize<1>(), i) for the single elements, of the calling thread's share;
// `i` is the number of the first element.
template <int N, typename F>
__device__ inline void ForEachPack(const PackedRange& range, F f) {
  ForEach(range.packs, [&](int64_t pack) { f(PackSize<N>(), range.head + pack * N); });
  ForEach(range.numel - range.packs * N,
          [&](int64_t i) { f(PackSize<1>(), i < range.head ? i : i + range.packs * N); });
}

// For each pack, and each single element, of the calling thread's share: a `Packs`, or a `Single`, loads its operands
// and finishes them. A thread loads kLoads packs before it finishes the first, so that as many loads are under way at a
// time; a block takes kLoads neighbouring runs of as many packs as it has threads. Both types have kSize,
// Load(operands, i) and Finish(operands, i); `i` is the number of the first element. Blocks have kThreads threads.
template <int kLoads, typename Packs, typename Single, typename Operands>
__device__ inline void ForEachLoaded(const PackedRange& range, const Operands& operands) {
  constexpr int kSize = Packs::kSize;
  constexpr int64_t kBlockPacks = kThreads * kLoads;
  for (int64_t first = blockIdx.x * kBlockPacks + threadIdx.x; first < range.packs; first += gridDim.x * kBlockPacks) {
    Packs packs[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int64_t pack = first + l * kThreads;
      if (pack < range.packs) packs[l].Load(operands, range.head + pack * kSize);
    }
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int64_t pack = first + l * kThreads;
      if (pack < range.packs) packs[l].Finish(operands, range.head + pack * kSize);
    }
  }
  const int64_t singles = range.numel - range.packs * kSize;
#pragma unroll 1
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < singles; i += gridDim.x * kThreads) {
    const int64_t element = i < range.head ? i : i + range.packs * kSize;
    Single single;
    single.Load(operands, element);
    single.Finish(operands, element);
  }
}

// The 32-bit words that hold the `kBytes` bytes of a pack when it is loaded: two 16-bit elements then share a register.
template <size_t kBytes>
struct WordsOf;
template <>
struct WordsOf<16> {
  using Type = uint4;
};
template <>
struct WordsOf<8> {
  using Type = uint2;
};

// Load and store N elements by one access. REQUIRES: `data` is aligned to a pack of N.
template <int N, typename T>
__device__ inline Pack<T, N> LoadPack(const T* data) {
  if constexpr (sizeof(T) * N >= 8) {
    const auto words = *reinterpret_cast<const typename WordsOf<sizeof(T) * N>::Type*>(data);
    Pack<T, N> pack;
    memcpy(&pack, &words, sizeof(pack));
    return pack;
  } else {
    return *reinterpret_cast<const Pack<T, N>*>(data);
  }
}

template <int N, typename T>
__device__ inline void StorePack(const Pack<T, N>& pack, T* data) {
  *reinterpret_cast<Pack<T, N>*>(data) = pack;
}

// StorePack to global memory, certainly by one instruction: the compiler splits some stores of structs into stores of
// elements.
template <int N, typename T>
__device__ inline void StoreGlobalPack(const Pack<T, N>& pack, T* data) {
#ifdef __CUDACC__
  if constexpr (sizeof(pack) >= 8) {
    typename WordsOf<sizeof(pack)>::Type words;
    memcpy(&words, &pack, sizeof(words));
    const size_t address = __cvta_generic_to_global(data);
    if constexpr (sizeof(pack) == 16) {
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words.x), "r"(words.y), "r"(words.z),
                   "r"(words.w)
                   : "memory");
    } else {
      asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words.x), "r"(words.y) : "memory");
    }
    return;
  }
#endif
  StorePack(pack, data);
}

// The pack at `data`, which is read only if `exists`; else zeros.
template <int N, typename T>
__device__ inline Pack<T, N> LoadPackIf(bool exists, const T* data) {
  Pack<T, N> pack = {};
  if constexpr (sizeof(T) * N >= 8) {
    typename WordsOf<sizeof(T)* N>::Type words = {};
    if (exists) words = *reinterpret_cast<const typename WordsOf<sizeof(T) * N>::Type*>(data);
    memcpy(&pack, &words, sizeof(pack));
  } else if (exists) {
    pack = LoadPack<N>(data);
  }
  return pack;
}

}  // namespace fsdp

#endif  // FSDP_CUDA_PACK_H_
