// SPDX-License-Identifier: Apache-2.0
//
// A thread computes one block of Philox4x32-10, which is four numbers of the sequence, and does the elements that they
// belong to. The rounds are those of base/random.cc, whose numbers these are bit for bit (nn/layer_ops_test.cc).

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

template <typename T>
__global__ void Drop(const T* x, DropoutMask mask, T* out, int64_t numel) {
  const float scale = 1 / (1 - mask.p);
  const uint64_t first_block = mask.first / 4;
  const auto blocks = static_cast<int64_t>((mask.first + numel - 1) / 4 - first_block + 1);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; b < blocks; b += step) {
    const Four bits = PhiloxBlock(mask.seed, mask.sequence, first_block + b);
    for (int k = 0; k < 4; ++k) {
      // Before the first element in the first block, this is negative.
      const auto i = static_cast<int64_t>((first_block + b) * 4 + k - mask.first);
      if (i < 0 || i >= numel) continue;
      const float uniform = static_cast<float>(bits.at[k] >> 8) * (1.0f / (1 << 24));
      out[i] = Round<T>(uniform >= mask.p ? Widen<float>(x[i]) * scale : 0.0f);
    }
  }
}

}  // namespace

void CudaDropout(const Tensor& x, const DropoutMask& mask, const Tensor& out, CUstream_st* stream) {
  if (x.numel() == 0) return;
  WithActivationType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Launch(Drop<T>, Blocks(x.numel() / 4 + 2), kThreads, 0, stream, static_cast<const T*>(x.data()), mask,
           static_cast<T*>(out.data()), x.numel());
  });
}

}  // namespace fsdp
