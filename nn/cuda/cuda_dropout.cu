// SPDX-License-Identifier: Apache-2.0
//
// A block of Philox4x32-10 is four numbers of the sequence. If packs of elements begin with the first number of a
// block, a thread computes the blocks of a pack and writes the pack; else it computes one block and writes the elements
// that its numbers belong to, one by one. The rounds are as in base/random.cc, which gives the same numbers bit for bit
// (nn/layer_ops_test.cc).

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_dropout.h"

namespace fsdp {
namespace {

struct Four {
  uint32_t at[4];
};

__device__ uint32_t UpperHalf(uint32_t a, uint32_t b) { return static_cast<uint32_t>((uint64_t{a} * b) >> 32); }

__device__ Four PhiloxBlock(uint64_t seed, uint64_t sequence, uint64_t block) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  Four c = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(sequence),
             static_cast<uint32_t>(sequence >> 32)}};
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    c = {{UpperHalf(kMultiplier1, c.at[2]) ^ c.at[1] ^ key0, kMultiplier1 * c.at[2],
          UpperHalf(kMultiplier0, c.at[0]) ^ c.at[3] ^ key1, kMultiplier0 * c.at[0]}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

// The element that belongs to a random number.
__device__ float Dropped(float x, uint32_t bits, float p, float scale) {
  // The upper 24 bits: every value is a float32 in [0, 1), as in base/random.cc.
  const float uniform = static_cast<float>(bits >> 8) * (1.0f / (1 << 24));
  return uniform >= p ? x * scale : 0.0f;
}

template <typename T>
struct Operands {
  const T* x;
  T* out;
  DropoutMask mask;
  float scale;
};

// N elements, the first of which belongs to the first number of a block; or a single one, which may belong to any
// number.
template <int N, typename T>
struct Packs : PackSize<N> {
  __device__ void Load(const Operands<T>& o, int64_t i) { pack = LoadPack<N>(o.x + i); }

  __device__ void Finish(const Operands<T>& o, int64_t i) const {
    const uint64_t number = o.mask.first + i;
    float values[N];
    WidenPack(pack, values);
    if constexpr (N == 1) {
      const Four bits = PhiloxBlock(o.mask.seed, o.mask.sequence, number / 4);
      const uint64_t k = number % 4;
      values[0] = Dropped(values[0],
                          k == 0   ? bits.at[0]
                          : k == 1 ? bits.at[1]
                          : k == 2 ? bits.at[2]
                                   : bits.at[3],
                          o.mask.p, o.scale);
    } else {
#pragma unroll
      for (int k = 0; k < N; k += 4) {
        const Four bits = PhiloxBlock(o.mask.seed, o.mask.sequence, (number + k) / 4);
#pragma unroll
        for (int b = 0; b < 4; ++b) values[k + b] = Dropped(values[k + b], bits.at[b], o.mask.p, o.scale);
      }
    }
    StoreGlobalPack(RoundPack<T>(values), o.out + i);
  }

  Pack<T, N> pack;
};

constexpr int kPacksInFlight = 2;

template <int N, typename T>
__global__ void __launch_bounds__(kThreads) DropPacks(Operands<T> o, PackedRange range) {
  ForEachLoaded<kPacksInFlight, Packs<N, T>, Packs<1, T>>(range, o);
}

template <typename T>
__global__ void DropElements(Operands<T> o, int64_t numel) {
  const uint64_t first_block = o.mask.first / 4;
  const auto blocks = static_cast<int64_t>((o.mask.first + numel - 1) / 4 - first_block + 1);
  ForEach(blocks, [&](int64_t b) {
    const Four bits = PhiloxBlock(o.mask.seed, o.mask.sequence, first_block + b);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      // Negative in the first block before the first element.
      const auto i = static_cast<int64_t>((first_block + b) * 4 + k - o.mask.first);
      if (i < 0 || i >= numel) continue;
      o.out[i] = Round<T>(Dropped(Widen<float>(o.x[i]), bits.at[k], o.mask.p, o.scale));
    }
  });
}

}  // namespace

void CudaDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, CUstream_st* stream) {
  if (x.numel() == 0) return;
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    const Operands<T> o = {x.data_as<const T>(), out.data_as<T>(), mask, 1 / (1 - mask.p)};
    const PackedRange range = MakePackedRange(kPack, x.numel(), {{o.x, sizeof(T)}, {o.out, sizeof(T)}});
    // Packs are aligned in memory; they serve only if they also begin with a block of numbers.
    if (range.packs > 0 && (mask.first + range.head) % 4 == 0) {
      Launch(DropPacks<kPack, T>, Blocks(range.threads(kPack, kPacksInFlight)), kThreads, 0, stream, o, range);
    } else {
      // Up to two more blocks of numbers than whole ones, for the parts at both ends.
      Launch(DropElements<T>, Blocks(x.numel() / 4 + 2), kThreads, 0, stream, o, x.numel());
    }
  });
}

}  // namespace fsdp
