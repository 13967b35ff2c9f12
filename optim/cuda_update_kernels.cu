// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "cuda/float_types.h"
#include "cuda/launch.h"
#include "cuda/pack.h"
#include "optim/cuda_update_kernels.h"

namespace fsdp {
namespace {

// Four float32 are as much as one access moves.
constexpr int kPack = 4;

// Slices that one launch updates: as many as fit into a kernel's parameters.
constexpr int kMaxSlices = 32;

// Packs that a block has at least, so that a small slice does not take many blocks.
constexpr int64_t kPacksPerBlock = 4 * kThreads;

// Every operation is rounded by itself, as the intrinsics are: nvcc would fuse multiplications and additions.

template <typename G>
struct AdamWSlice {
  AdamWScalars s;
  float* parameter;
  const G* grad;
  float* exp_avg;
  float* exp_avg_sq;
  PackedRange range;

  template <int N>
  __device__ void Update(int64_t i) const {
    const Pack<G, N> grads = LoadPack<N>(grad + i);
    Pack<float, N> p = LoadPack<N>(parameter + i);
    Pack<float, N> m = LoadPack<N>(exp_avg + i);
    Pack<float, N> v = LoadPack<N>(exp_avg_sq + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = Widen<float>(grads.at[k]);
      const float difference = __fsub_rn(g, m.at[k]);
      m.at[k] = s.one_minus_beta1 < 0.5f ? __fadd_rn(m.at[k], __fmul_rn(s.one_minus_beta1, difference))
                                         : __fsub_rn(g, __fmul_rn(difference, __fsub_rn(1.0f, s.one_minus_beta1)));
      v.at[k] = __fadd_rn(__fmul_rn(v.at[k], s.beta2), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
      const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v.at[k]), s.sqrt_bias_correction2), s.eps);
      const float step = __fdiv_rn(__fmul_rn(s.negative_step_size, m.at[k]), denominator);
      p.at[k] = __fadd_rn(p.at[k], __fadd_rn(step, __fmul_rn(s.negative_decay, p.at[k])));
    }
    StorePack(m, exp_avg + i);
    StorePack(v, exp_avg_sq + i);
    StorePack(p, parameter + i);
  }
};

template <typename G>
struct SgdSlice {
  SgdScalars s;
  float* parameter;
  const G* grad;
  float* momentum_buffer;
  PackedRange range;

  template <int N>
  __device__ void Update(int64_t i) const {
    const Pack<G, N> grads = LoadPack<N>(grad + i);
    Pack<float, N> p = LoadPack<N>(parameter + i);
    Pack<float, N> b{};
    if (s.momentum != 0 && !s.first) b = LoadPack<N>(momentum_buffer + i);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float g = Widen<float>(grads.at[k]);
      if (s.weight_decay != 0) g = __fadd_rn(g, __fmul_rn(s.weight_decay, p.at[k]));
      if (s.momentum != 0) {
        b.at[k] = s.first ? g : __fadd_rn(__fmul_rn(b.at[k], s.momentum), __fmul_rn(s.one_minus_dampening, g));
        g = s.nesterov ? __fadd_rn(g, __fmul_rn(s.momentum, b.at[k])) : b.at[k];
      }
      p.at[k] = __fadd_rn(p.at[k], __fmul_rn(s.negative_lr, g));
    }
    if (s.momentum != 0) StorePack(b, momentum_buffer + i);
    StorePack(p, parameter + i);
  }
};

template <typename Slice>
struct Batch {
  Slice slices[kMaxSlices];
  int first_block[kMaxSlices + 1];  // of each slice; then the number of blocks
  int count;
};

template <typename Slice>
__global__ void UpdateSlices(Batch<Slice> batch) {
  const int block = static_cast<int>(blockIdx.x);
  int i = 0;
  while (block >= batch.first_block[i + 1]) ++i;
  const Slice& slice = batch.slices[i];
  const PackedRange& range = slice.range;
  const int64_t step = static_cast<int64_t>(batch.first_block[i + 1] - batch.first_block[i]) * kThreads;
  const int64_t first = static_cast<int64_t>(block - batch.first_block[i]) * kThreads + threadIdx.x;
  for (int64_t pack = first; pack < range.packs; pack += step) {
    slice.template Update<kPack>(range.head + pack * kPack);
  }
  for (int64_t j = first; j < range.numel - range.packs * kPack; j += step) {
    slice.template Update<1>(j < range.head ? j : j + range.packs * kPack);
  }
}

template <typename Slice>
void LaunchBatch(Batch<Slice>& batch, CUstream_st* stream) {
  if (batch.count > 0) Launch(UpdateSlices<Slice>, batch.first_block[batch.count], kThreads, 0, stream, batch);
  batch.count = 0;
}

// Updates those slices whose gradients are of `grad_dtype`. `slice_of` makes the slice of an update.
template <typename Slice, typename Update, typename SliceOf>
void LaunchUpdates(const std::vector<Update>& updates, DType grad_dtype, SliceOf slice_of, CUstream_st* stream) {
  Batch<Slice> batch = {};
  for (const Update& update : updates) {
    const int64_t numel = update.grad.numel();
    if (update.grad.dtype() != grad_dtype || numel == 0) continue;
    Slice& slice = batch.slices[batch.count] = slice_of(update);
    const int64_t work = slice.range.threads(kPack);
    const int64_t blocks = std::clamp<int64_t>((work + kPacksPerBlock - 1) / kPacksPerBlock, 1, kMaxBlocks);
    batch.first_block[batch.count + 1] = batch.first_block[batch.count] + static_cast<int>(blocks);
    if (++batch.count == kMaxSlices) LaunchBatch(batch, stream);
  }
  LaunchBatch(batch, stream);
}

template <typename G>
AdamWSlice<G> SliceOf(const AdamWUpdate& u) {
  return {u.scalars,
          u.data.data_as<float>(),
          u.grad.data_as<const G>(),
          u.exp_avg.data_as<float>(),
          u.exp_avg_sq.data_as<float>(),
          MakePackedRange(kPack, u.grad.numel(),
                          {{u.data.data(), sizeof(float)},
                           {u.grad.data(), sizeof(G)},
                           {u.exp_avg.data(), sizeof(float)},
                           {u.exp_avg_sq.data(), sizeof(float)}})};
}

template <typename G>
SgdSlice<G> SliceOf(const SgdUpdate& u) {
  return {u.scalars, u.data.data_as<float>(), u.grad.data_as<const G>(), u.momentum_buffer.data_as<float>(),
          MakePackedRange(
              kPack, u.grad.numel(),
              {{u.data.data(), sizeof(float)}, {u.grad.data(), sizeof(G)}, {u.momentum_buffer.data(), sizeof(float)}})};
}

}  // namespace

void CudaUpdateAdamW(const std::vector<AdamWUpdate>& updates, CUstream_st* stream) {
  LaunchUpdates<AdamWSlice<float>>(
      updates, DType::kFloat32, [](const AdamWUpdate& u) { return SliceOf<float>(u); }, stream);
  LaunchUpdates<AdamWSlice<__nv_bfloat16>>(
      updates, DType::kBFloat16, [](const AdamWUpdate& u) { return SliceOf<__nv_bfloat16>(u); }, stream);
}

void CudaUpdateSgd(const std::vector<SgdUpdate>& updates, CUstream_st* stream) {
  LaunchUpdates<SgdSlice<float>>(
      updates, DType::kFloat32, [](const SgdUpdate& u) { return SliceOf<float>(u); }, stream);
  LaunchUpdates<SgdSlice<__nv_bfloat16>>(
      updates, DType::kBFloat16, [](const SgdUpdate& u) { return SliceOf<__nv_bfloat16>(u); }, stream);
}

}  // namespace fsdp
