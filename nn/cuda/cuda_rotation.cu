// SPDX-License-Identifier: Apache-2.0
//
// A single kernel serves both directions. A thread takes a pack of each half of one head, since rotation pairs element
// i with element i + D / 2, and moves it between the separate q, k and v and their place in the rows of qkv; on the way
// q and k are rotated.

#include <algorithm>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/nn/cuda/cuda_rotation.h"

namespace fsdp {
namespace {

// q, k and v [rows, heads, dim] separately, and `together` side by side, [rows, all heads, dim]. Forward goes from the
// former to the latter, backward the other way.
template <typename T>
struct RotationOperands {
  T* q;
  T* k;
  T* v;
  T* together;
  const T* rotation;
  unsigned heads;
  unsigned kv_heads;
  unsigned dim;
  int64_t seq_len;
  int64_t rows;
  unsigned block_rows;  // rows that a block does
};

// The N elements from `i` of each half of one head of one row, in both places.
template <typename T>
struct HeadPart {
  // `head` counts all heads of the row.
  __device__ HeadPart(const RotationOperands<T>& o, int64_t row, unsigned head, unsigned i)
      : together(o.together + (row * (o.heads + 2 * o.kv_heads) + head) * o.dim + i),
        is_value(head >= o.heads + o.kv_heads) {
    const bool is_query = head < o.heads;
    const unsigned first = is_query ? 0 : is_value ? o.heads + o.kv_heads : o.heads;
    T* part = is_query ? o.q : is_value ? o.v : o.k;
    apart = part + (row * (is_query ? o.heads : o.kv_heads) + (head - first)) * o.dim + i;
  }

  T* together;
  T* apart;
  bool is_value;  // which is copied
};

// Rotates halves a and b by the angle or, backward, by its negative, which is the transposed map. Rounded one by one:
// no fused multiply-add.
template <bool kBack, int N, typename T>
__device__ void RotatePacks(const Pack<T, N>& cosines, const Pack<T, N>& sines, Pack<T, N>& a, Pack<T, N>& b) {
  float x[N], y[N], cosine[N], sine[N];
  WidenPack(a, x);
  WidenPack(b, y);
  WidenPack(cosines, cosine);
  WidenPack(sines, sine);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float s = kBack ? -sine[k] : sine[k];
    const float rotated_x = __fsub_rn(RoundTo<T>(__fmul_rn(x[k], cosine[k])), RoundTo<T>(__fmul_rn(y[k], s)));
    y[k] = __fadd_rn(RoundTo<T>(__fmul_rn(y[k], cosine[k])), RoundTo<T>(__fmul_rn(x[k], s)));
    x[k] = rotated_x;
  }
  a = RoundPack<T>(x);
  b = RoundPack<T>(y);
}

// A block does block_rows rows; a thread takes N elements of each half of one head at a time. Within a block, numbers
// of items have 32 bits, whose division is cheap.
template <bool kBack, int N, typename T>
__global__ void __launch_bounds__(kThreads) Rotate(RotationOperands<T> o) {
  const unsigned half = o.dim / 2, packs = half / N, row_items = (o.heads + 2 * o.kv_heads) * packs;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * o.block_rows;
  const auto rows = static_cast<unsigned>(o.rows - first_row < o.block_rows ? o.rows - first_row : o.block_rows);
  const auto first_position = static_cast<unsigned>(first_row % o.seq_len);
  const auto seq_len = static_cast<unsigned>(o.seq_len);
  for (unsigned item = threadIdx.x; item < rows * row_items; item += kThreads) {
    const unsigned row = item / row_items, row_item = item % row_items;
    const unsigned head = row_item / packs, i = row_item % packs * N;
    const HeadPart<T> part(o, first_row + row, head, i);
    const T* from = kBack ? part.together : part.apart;
    T* to = kBack ? part.apart : part.together;
    Pack<T, N> a = LoadPack<N>(from), b = LoadPack<N>(from + half);
    if (!part.is_value) {
      const T* angles = o.rotation + static_cast<int64_t>((first_position + row) % seq_len) * o.dim + i;
      RotatePacks<kBack>(LoadPack<N>(angles), LoadPack<N>(angles + half), a, b);
    }
    StoreGlobalPack(a, to);
    StoreGlobalPack(b, to + half);
  }
}

template <bool kBack>
void LaunchRotate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                  const AttentionShape& shape, const Tensor& qkv, CUstream_st* stream) {
  if (qkv.numel() == 0) return;
  WithActivationType(qkv.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    constexpr int kPack = kPackBytes / sizeof(T);
    bool aligned = shape.head_dim / 2 % kPack == 0;
    for (const Tensor* t : {&q, &k, &v, &rotation, &qkv}) aligned = aligned && IsAligned(t->data(), kPackBytes);
    const int64_t rows = shape.batch * shape.seq_len;
    const int64_t row_items = qkv.numel() / rows / 2 / (aligned ? kPack : 1);
    // About four items for each thread.
    const int64_t block_rows = std::max<int64_t>(4 * kThreads / row_items, 1);
    const RotationOperands<T> o = {.q = q.data_as<T>(),
                                   .k = k.data_as<T>(),
                                   .v = v.data_as<T>(),
                                   .together = qkv.data_as<T>(),
                                   .rotation = rotation.data_as<const T>(),
                                   .heads = static_cast<unsigned>(shape.num_heads),
                                   .kv_heads = static_cast<unsigned>(shape.kv_heads()),
                                   .dim = static_cast<unsigned>(shape.head_dim),
                                   .seq_len = shape.seq_len,
                                   .rows = rows,
                                   .block_rows = static_cast<unsigned>(block_rows)};
    const auto blocks = static_cast<unsigned>((rows + block_rows - 1) / block_rows);
    Launch(aligned ? Rotate<kBack, kPack, T> : Rotate<kBack, 1, T>, blocks, kThreads, 0, stream, o);
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
