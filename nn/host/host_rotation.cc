// SPDX-License-Identifier: Apache-2.0
//
// A single pass rotates and, at the same time, interleaves q, k and v into the rows that attention reads: [q heads | k
// heads | v heads]. Rotating in place and copying afterwards would read and write everything twice. Each product is
// rounded to the dtype before it is added, since Hugging Face's model makes an operation of each.
#include "fsdp/nn/host/host_rotation.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/host/host_rotation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "fsdp/tensor/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp {
namespace HWY_NAMESPACE {

// The halves (a, b) of each of `heads` heads to (a cos - b sin, b cos + a sin), or back again: by the negated angle,
// which is the transposed map and so the gradient's.
template <bool kBack, typename T>
void RotateHeads(const T* x, const T* rotation, int64_t heads, int64_t head_dim, T* out) {
  const FloatTag d;
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h, x += head_dim, out += head_dim) {
    ForEachVector(half, [&](int64_t i, size_t count) HWY_ATTR {
      const FloatVec a = LoadUpTo(d, x + i, count);
      const FloatVec b = LoadUpTo(d, x + half + i, count);
      const FloatVec cosine = LoadUpTo(d, rotation + i, count);
      const FloatVec sine = LoadUpTo(d, rotation + half + i, count);
      const FloatVec signed_sine = kBack ? hn::Neg(sine) : sine;
      // Each product is rounded before the sum, as in PyTorch, which computes them as separate operations.
      const FloatVec first = hn::Sub(RoundTo<T>(d, hn::Mul(a, cosine)), RoundTo<T>(d, hn::Mul(b, signed_sine)));
      const FloatVec second = hn::Add(RoundTo<T>(d, hn::Mul(b, cosine)), RoundTo<T>(d, hn::Mul(a, signed_sine)));
      StoreUpTo(d, first, out + i, count);
      StoreUpTo(d, second, out + half + i, count);
    });
  }
}

template <typename T>
void RotateRows(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation, const AttentionShape& shape,
                const Tensor& qkv) {
  const int64_t q_width = shape.q_width(), kv_width = shape.kv_width();
  for (int64_t row = 0; row < shape.batch * shape.seq_len; ++row) {
    const T* angles = rotation.data_as<const T>() + row % shape.seq_len * shape.head_dim;
    T* out = qkv.data_as<T>() + row * shape.qkv_width();
    RotateHeads<false>(q.data_as<const T>() + row * q_width, angles, shape.num_heads, shape.head_dim, out);
    RotateHeads<false>(k.data_as<const T>() + row * kv_width, angles, shape.kv_heads(), shape.head_dim, out + q_width);
    // Values are not rotated: positions only enter the scores.
    std::memcpy(out + q_width + kv_width, v.data_as<const T>() + row * kv_width, kv_width * sizeof(T));
  }
}

template <typename T>
void RotateRowsBack(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape, const Tensor& grad_q,
                    const Tensor& grad_k, const Tensor& grad_v) {
  const int64_t q_width = shape.q_width(), kv_width = shape.kv_width();
  for (int64_t row = 0; row < shape.batch * shape.seq_len; ++row) {
    const T* angles = rotation.data_as<const T>() + row % shape.seq_len * shape.head_dim;
    const T* grad = grad_qkv.data_as<const T>() + row * shape.qkv_width();
    RotateHeads<true>(grad, angles, shape.num_heads, shape.head_dim, grad_q.data_as<T>() + row * q_width);
    RotateHeads<true>(grad + q_width, angles, shape.kv_heads(), shape.head_dim, grad_k.data_as<T>() + row * kv_width);
    std::memcpy(grad_v.data_as<T>() + row * kv_width, grad + q_width + kv_width, kv_width * sizeof(T));
  }
}

void RotateKernel(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                  const AttentionShape& shape, const Tensor& qkv) {
  WithElementType(q.dtype(),
                  [&](auto element) HWY_ATTR { RotateRows<decltype(element)>(q, k, v, rotation, shape, qkv); });
}

void RotateBackKernel(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape, const Tensor& grad_q,
                      const Tensor& grad_k, const Tensor& grad_v) {
  WithElementType(grad_qkv.dtype(), [&](auto element) HWY_ATTR {
    RotateRowsBack<decltype(element)>(grad_qkv, rotation, shape, grad_q, grad_k, grad_v);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp {

HWY_EXPORT(RotateKernel);
HWY_EXPORT(RotateBackKernel);

void HostRotateQkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rotation,
                   const AttentionShape& shape, const Tensor& qkv) {
  HWY_DYNAMIC_DISPATCH(RotateKernel)(q, k, v, rotation, shape, qkv);
}

void HostRotateQkvBackward(const Tensor& grad_qkv, const Tensor& rotation, const AttentionShape& shape,
                           const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v) {
  HWY_DYNAMIC_DISPATCH(RotateBackKernel)(grad_qkv, rotation, shape, grad_q, grad_k, grad_v);
}

}  // namespace fsdp
#endif  // HWY_ONCE
