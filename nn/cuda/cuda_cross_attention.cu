// SPDX-License-Identifier: Apache-2.0
//
// Three kernels:
//
//   Forward    a block for each query and head: its scores by all keys, softmax, and the sum of values
//   Queries    backward, likewise: probabilities and gradients of scores again, grad_q, and the row sum of p dp
//   Keys       backward, a block for each key and head of keys: the same by all queries of the group, grad_k and grad_v
//
// A row of scores is in shared memory; one loop runs over its elements and the next over head_dim. All sums run in
// ascending order, or over a fixed division among threads that is then summed in order.

#include <algorithm>

#include "fsdp/cuda/dynamic_shared_memory.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/nn/cuda/cuda_cross_attention.h"

namespace fsdp {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct Sizes {
  const T *q, *k, *v;
  const int32_t* key_mask;  // may be null
  const T* grad_out;        // backward's, as the two below
  float* statistics;
  float* row_sums;  // of p dp, [B * H * T]
  T *out, *grad_q, *grad_k, *grad_v;
  int64_t q_len, kv_len, heads, kv_heads, head_dim;
  float scale;

  __device__ int64_t group() const { return heads / kv_heads; }
  __device__ const T* Query(const T* t, int64_t batch, int64_t head, int64_t at) const {
    return t + ((batch * q_len + at) * heads + head) * head_dim;
  }
  __device__ const T* Key(const T* t, int64_t batch, int64_t kv_head, int64_t at) const {
    return t + ((batch * kv_len + at) * kv_heads + kv_head) * head_dim;
  }
  __device__ bool Sees(int64_t batch, int64_t key) const {
    return key_mask == nullptr || key_mask[batch * kv_len + key] != 0;
  }
  __device__ float Dot(const T* a, const T* b) const {
    float sum = 0;
    for (int64_t d = 0; d < head_dim; ++d) sum += Widen<float>(a[d]) * Widen<float>(b[d]);
    return sum;
  }
};

// Rows of the longest sequence that CudaLayerOps lets through.
struct Shared {
  float partial[kThreads];
  float probabilities[kMaxCrossAttentionLength];
  float grads[kMaxCrossAttentionLength];
};

template <typename F>
__device__ void ForEach(int64_t n, F body) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) body(i);
}

// The partial results of all threads, combined in their order; the same for each thread.
template <typename F>
__device__ float Combine(Shared& shared, float mine, F combine) {
  __syncthreads();  // every thread has read the previous partial results
  shared.partial[threadIdx.x] = mine;
  __syncthreads();
  float all = shared.partial[0];
  for (int i = 1; i < kThreads; ++i) all = combine(all, shared.partial[i]);
  return all;
}

template <typename T>
__global__ void Forward(Sizes<T> s) {
  Shared& shared = SharedMemory<Shared>();
  const int64_t row = blockIdx.x;  // (batch, head, query)
  const int64_t query = row % s.q_len, head = row / s.q_len % s.heads, batch = row / (s.q_len * s.heads);
  const T* const q = s.Query(s.q, batch, head, query);
  // One thread writes and reads a key's score up to the second Combine, whose barriers show the row to all threads.
  float maximum = -INFINITY;
  ForEach(s.kv_len, [&](int64_t key) {
    if (!s.Sees(batch, key)) return;
    shared.probabilities[key] = s.scale * s.Dot(q, s.Key(s.k, batch, head / s.group(), key));
    maximum = fmaxf(maximum, shared.probabilities[key]);
  });
  maximum = Combine(shared, maximum, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  ForEach(s.kv_len, [&](int64_t key) {
    const float e = s.Sees(batch, key) ? expf(shared.probabilities[key] - maximum) : 0;
    shared.probabilities[key] = e;
    sum += e;
  });
  sum = Combine(shared, sum, [](float a, float b) { return a + b; });
  // A query that sees no key has sum 0: its output is 0, and inverse 0 tells backward that its probabilities are 0.
  const float inverse = sum == 0 ? 0 : 1 / sum;
  if (threadIdx.x == 0) {
    s.statistics[2 * row] = sum == 0 ? 0 : maximum;
    s.statistics[2 * row + 1] = inverse;
  }
  // out and grad_out have q's layout, so q's offset is theirs.
  T* const out = s.out + (q - s.q);
  ForEach(s.head_dim, [&](int64_t d) {
    float value = 0;
    for (int64_t key = 0; key < s.kv_len; ++key) {
      value +=
          RoundTo<T>(shared.probabilities[key] * inverse) * Widen<float>(s.Key(s.v, batch, head / s.group(), key)[d]);
    }
    out[d] = Round<T>(value);
  });
}

// The probability of a key for a query, from the kept statistics.
template <typename T>
__device__ float Probability(const Sizes<T>& s, int64_t row, const T* q, int64_t batch, int64_t kv_head, int64_t key) {
  const float inverse = s.statistics[2 * row + 1];
  if (inverse == 0 || !s.Sees(batch, key)) return 0;
  return expf(s.scale * s.Dot(q, s.Key(s.k, batch, kv_head, key)) - s.statistics[2 * row]) * inverse;
}

template <typename T>
__global__ void Queries(Sizes<T> s) {
  Shared& shared = SharedMemory<Shared>();
  const int64_t row = blockIdx.x;
  const int64_t query = row % s.q_len, head = row / s.q_len % s.heads, batch = row / (s.q_len * s.heads);
  const int64_t kv_head = head / s.group();
  const T* const q = s.Query(s.q, batch, head, query);
  const T* const grad_out = s.grad_out + (q - s.q);
  float sum = 0;
  ForEach(s.kv_len, [&](int64_t key) {
    const float p = Probability(s, row, q, batch, kv_head, key);
    const float grad = s.Dot(grad_out, s.Key(s.v, batch, kv_head, key));
    shared.probabilities[key] = p;
    shared.grads[key] = grad;
    sum += p * grad;
  });
  // Combine's barriers also make every thread's probabilities and grads visible to the loop over head_dim.
  sum = Combine(shared, sum, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) s.row_sums[row] = sum;
  ForEach(s.head_dim, [&](int64_t d) {
    float value = 0;
    for (int64_t key = 0; key < s.kv_len; ++key) {
      const float grad_score = s.scale * shared.probabilities[key] * (shared.grads[key] - sum);
      value += RoundTo<T>(grad_score) * Widen<float>(s.Key(s.k, batch, kv_head, key)[d]);
    }
    s.grad_q[q - s.q + d] = Round<T>(value);
  });
}

template <typename T>
__global__ void Keys(Sizes<T> s) {
  constexpr int kPerThread = 2;  // of head_dim, which is at most 256
  Shared& shared = SharedMemory<Shared>();
  const int64_t at = blockIdx.x;  // (batch, key, head of keys), as k has them
  const int64_t kv_head = at % s.kv_heads, key = at / s.kv_heads % s.kv_len, batch = at / (s.kv_heads * s.kv_len);
  float grad_k[kPerThread] = {}, grad_v[kPerThread] = {};
  for (int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head) {
    __syncthreads();  // the last head's rows have been read
    ForEach(s.q_len, [&](int64_t query) {
      const int64_t row = (batch * s.heads + head) * s.q_len + query;
      const T* const q = s.Query(s.q, batch, head, query);
      const float p = Probability(s, row, q, batch, kv_head, key);
      const float grad = s.Dot(s.grad_out + (q - s.q), s.Key(s.v, batch, kv_head, key));
      shared.probabilities[query] = RoundTo<T>(p);
      shared.grads[query] = RoundTo<T>(s.scale * p * (grad - s.row_sums[row]));
    });
    __syncthreads();
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t d = threadIdx.x + i * kThreads;
      if (d >= s.head_dim) break;
      for (int64_t query = 0; query < s.q_len; ++query) {
        const int64_t element = s.Query(s.q, batch, head, query) - s.q + d;
        grad_k[i] += shared.grads[query] * Widen<float>(s.q[element]);
        grad_v[i] += shared.probabilities[query] * Widen<float>(s.grad_out[element]);
      }
    }
  }
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t d = threadIdx.x + i * kThreads;
    if (d >= s.head_dim) break;
    s.grad_k[at * s.head_dim + d] = Round<T>(grad_k[i]);
    s.grad_v[at * s.head_dim + d] = Round<T>(grad_v[i]);
  }
}

template <typename T>
Sizes<T> SizesOf(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& statistics) {
  const auto data = [](const Tensor& t) { return static_cast<const T*>(t.data()); };
  Sizes<T> s = {};
  s.q = data(operands.q);
  s.k = data(operands.k);
  s.v = data(operands.v);
  s.key_mask = operands.key_mask.defined() ? static_cast<const int32_t*>(operands.key_mask.data()) : nullptr;
  s.statistics = static_cast<float*>(statistics.data());
  s.q_len = shape.q_len;
  s.kv_len = shape.kv_len;
  s.heads = shape.num_heads;
  s.kv_heads = shape.kv_heads();
  s.head_dim = shape.head_dim;
  s.scale = shape.scale;
  return s;
}

int64_t Rows(const CrossAttentionShape& shape) { return shape.batch * shape.num_heads * shape.q_len; }

template <typename T>
void LaunchRows(void (*kernel)(Sizes<T>), int64_t blocks, const Sizes<T>& sizes, CUstream_st* stream) {
  // A grid of no blocks is an error of CUDA.
  if (blocks > 0) Launch(kernel, static_cast<unsigned>(blocks), kThreads, sizeof(Shared), stream, sizes);
}

}  // namespace

void CudaCrossAttention(const CrossAttentionOperands& operands, const CrossAttentionShape& shape, const Tensor& out,
                        const Tensor& statistics, CUstream_st* stream) {
  WithActivationType(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Sizes<T> sizes = SizesOf<T>(operands, shape, statistics);
    sizes.out = static_cast<T*>(out.data());
    LaunchRows(Forward<T>, Rows(shape), sizes, stream);
  });
}

void CudaCrossAttentionBackward(const Tensor& grad_out, const CrossAttentionOperands& operands,
                                const Tensor& statistics, const CrossAttentionShape& shape,
                                const CrossAttentionGrads& grads, float* memory, CUstream_st* stream) {
  WithActivationType(grad_out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    Sizes<T> sizes = SizesOf<T>(operands, shape, statistics);
    sizes.grad_out = static_cast<const T*>(grad_out.data());
    sizes.row_sums = memory;
    sizes.grad_q = static_cast<T*>(grads.q.data());
    sizes.grad_k = static_cast<T*>(grads.k.data());
    sizes.grad_v = static_cast<T*>(grads.v.data());
    // In stream order: Keys reads the row sums that Queries writes.
    LaunchRows(Queries<T>, Rows(shape), sizes, stream);
    LaunchRows(Keys<T>, shape.batch * shape.kv_len * shape.kv_heads(), sizes, stream);
  });
}

int64_t CrossAttentionBackwardBytes(const CrossAttentionShape& shape) {
  return Rows(shape) * static_cast<int64_t>(sizeof(float));
}

}  // namespace fsdp
