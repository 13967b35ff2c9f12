// SPDX-License-Identifier: Apache-2.0
//
// A single kernel serves both directions. A thread takes a pack of each half of one head, since rotation pairs element
// i with element i + D / 2, and moves it between the separate q, k and v and their place in the rows of qkv; on the way
// q and k are rotated.

#include <type_traits>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_rotation.h"

namespace fsdp {
namespace {

// `apart`: q, k and v [rows, heads, dim] each by itself; `together`: side by side, [rows, all heads, dim]. Forward
// goes from apart to together, backward the other way.
template <typename T>
struct RotationOperands {
  T* apart[3];
  T* together;
  const T* rotation;
  int heads;
  int kv_heads;
  int dim;
  int seq_len;
  int64_t rows;
};

// A thread takes N elements of each half of one head: for q and k it rotates them, by the angle or, backward, by its
// negative, which is the transposed map; v's it copies.
template <bool kBack, int N, typename T>
__global__ void Rotate(RotationOperands<T> o) {
  const int half = o.dim / 2;
  const int packs = half / N;
  const int all_heads = o.heads + 2 * o.kv_heads;
  ForEach(o.rows * all_heads * packs, [&](int64_t item) {
    const int i = static_cast<int>(item % packs) * N;
    const int64_t row_head = item / packs;
    const int head = static_cast<int>(row_head % all_heads);
    const int64_t row = row_head / all_heads;
    const int part = head < o.heads ? 0 : head < o.heads + o.kv_heads ? 1 : 2;
    const int part_heads = part == 0 ? o.heads : o.kv_heads;
    const int part_head = part == 0 ? head : head - o.heads - (part - 1) * o.kv_heads;
    T* apart = o.apart[part] + (row * part_heads + part_head) * o.dim + i;
    T* together = o.together + (row * all_heads + head) * o.dim + i;
    const T* from = kBack ? together : apart;
    T* to = kBack ? apart : together;
    Pack<T, N> a = LoadPack<N>(from);
    Pack<T, N> b = LoadPack<N>(from + half);
    if (part < 2) {
      const T* angles = o.rotation + row % o.seq_len * o.dim + i;
      const Pack<T, N> cosines = LoadPack<N>(angles);
      const Pack<T, N> sines = LoadPack<N>(angles + half);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float x = Widen<float>(a.at[k]), y = Widen<float>(b.at[k]);
        const float cosine = Widen<float>(cosines.at[k]);
        const float sine = kBack ? -Widen<float>(sines.at[k]) : Widen<float>(sines.at[k]);
        // Rounded one by one: no fused multiply-add.
        a.at[k] = Round<T>(__fsub_rn(RoundTo<T>(__fmul_rn(x, cosine)), RoundTo<T>(__fmul_rn(y, sine))));
        b.at[k] = Round<T>(__fadd_rn(RoundTo<T>(__fmul_rn(y, cosine)), RoundTo<T>(__fmul_rn(x, sine))));
      }
    }
    StorePack(a, to);
    StorePack(b, to + half);
  });
}

template <bool kBack>
void LaunchRotate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                  const AttentionShape& shape, const Tensor& qkv, CUstream_st* stream) {
  if (qkv.numel() == 0) return;
  WithActivationType(qkv.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    const RotationOperands<T> o = {.apart = {q.data_as<T>(), k.data_as<T>(), v.data_as<T>()},
                                   .together = qkv.data_as<T>(),
                                   .rotation = rotation.data_as<const T>(),
                                   .heads = static_cast<int>(shape.num_heads),
                                   .kv_heads = static_cast<int>(shape.kv_heads()),
                                   .dim = static_cast<int>(shape.head_dim),
                                   .seq_len = static_cast<int>(shape.seq_len),
                                   .rows = shape.batch * shape.seq_len};
    bool aligned = shape.head_dim / 2 % kPack == 0;
    for (const Tensor* t : {&q, &k, &v, &rotation, &qkv}) aligned = aligned && IsAligned(t->data(), kPackBytes);
    const int64_t pairs = qkv.numel() / 2;
    if (aligned) {
      Launch(Rotate<kBack, kPack, T>, Blocks(pairs / kPack), kThreads, 0, stream, o);
    } else {
      Launch(Rotate<kBack, 1, T>, Blocks(pairs), kThreads, 0, stream, o);
    }
  });
}

}  // namespace

void CudaRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv, CUstream_st* stream) {
  LaunchRotate<false>(q, k, v, rotation, shape, qkv, stream);
}

void CudaRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v, CUstream_st* stream) {
  LaunchRotate<true>(grad_q, grad_k, grad_v, rotation, shape, grad_qkv, stream);
}

}  // namespace fsdp
