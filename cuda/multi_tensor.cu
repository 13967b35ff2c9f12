// SPDX-License-Identifier: Apache-2.0

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/multi_tensor.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/slice_batch.h"

namespace fsdp {
namespace {

// Float32, or float64 for float64 tensors, as on the host.
template <typename T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
struct ScaleSlice {
  static constexpr int kPack = kPackBytes / sizeof(T);

  T* data;
  const float* factor;
  PackedRange range;

  template <int N>
  __device__ void Run(int64_t i) const {
    using C = ComputeType<T>;
    Pack<T, N> pack = LoadPack<N>(data + i);
    const C by = Widen<C>(__ldg(factor));
#pragma unroll
    for (int k = 0; k < N; ++k) pack.at[k] = Round<T>(Widen<C>(pack.at[k]) * by);
    StoreGlobalPack(pack, data + i);
  }
};

// Threads that find a non-finite element all write the same value, so their race has one outcome. x - x is 0 for finite
// x, and NaN for all others.
template <typename T>
struct CheckSlice {
  static constexpr int kPack = kPackBytes / sizeof(T);

  const T* source;
  float* found_inf;
  PackedRange range;

  template <int N>
  __device__ void Run(int64_t i) const {
    using C = ComputeType<T>;
    const Pack<T, N> pack = LoadPack<N>(source + i);
    bool finite = true;
#pragma unroll
    for (int k = 0; k < N; ++k) finite &= Widen<C>(pack.at[k]) - Widen<C>(pack.at[k]) == 0;
    if (!finite) *found_inf = 1;
  }
};

template <typename Word>
struct CopySlice {
  static constexpr int kPack = kPackBytes / sizeof(Word);

  const Word* from;
  Word* to;
  PackedRange range;

  template <int N>
  __device__ void Run(int64_t i) const {
    StoreGlobalPack(LoadPack<N>(from + i), to + i);
  }
};

// Launches Slice<T>(data, scalar) for the tensors of `dtype`, the dtype of T.
template <template <typename> typename Slice, typename T, typename Scalar>
void LaunchDType(const std::vector<Tensor>& tensors, DType dtype, Scalar* scalar, CUstream_st* stream) {
  SliceLauncher<Slice<T>> launcher(stream);
  for (const Tensor& t : tensors) {
    if (t.dtype() != dtype) continue;
    launcher.Add({t.data_as<T>(), scalar, MakePackedRange(Slice<T>::kPack, t.numel(), {{t.data(), sizeof(T)}})});
  }
  launcher.Flush();
}

template <template <typename> typename Slice, typename Scalar>
void LaunchAll(const std::vector<Tensor>& tensors, Scalar* scalar, CUstream_st* stream) {
  LaunchDType<Slice, double>(tensors, DType::kFloat64, scalar, stream);
  LaunchDType<Slice, float>(tensors, DType::kFloat32, scalar, stream);
  LaunchDType<Slice, __nv_bfloat16>(tensors, DType::kBFloat16, scalar, stream);
  LaunchDType<Slice, __half>(tensors, DType::kFloat16, scalar, stream);
}

// The bytes of the widest word, of at most 4, of which both sides are whole numbers. A copy whose sides are not aligned
// together to a pack moves word by word.
size_t WordBytes(const TensorCopy& copy) {
  for (const size_t bytes : {sizeof(uint32_t), sizeof(uint16_t)}) {
    if (IsAligned(copy.source.data(), bytes) && IsAligned(copy.destination.data(), bytes) &&
        copy.source.nbytes() % static_cast<int64_t>(bytes) == 0) {
      return bytes;
    }
  }
  return 1;
}

template <typename Word>
void LaunchCopies(const std::vector<TensorCopy>& copies, CUstream_st* stream) {
  SliceLauncher<CopySlice<Word>> launcher(stream);
  for (const TensorCopy& copy : copies) {
    if (WordBytes(copy) != sizeof(Word)) continue;
    const auto* from = static_cast<const Word*>(copy.source.data());
    auto* to = static_cast<Word*>(copy.destination.data());
    const int64_t words = copy.source.nbytes() / static_cast<int64_t>(sizeof(Word));
    launcher.Add(
        {from, to, MakePackedRange(CopySlice<Word>::kPack, words, {{from, sizeof(Word)}, {to, sizeof(Word)}})});
  }
  launcher.Flush();
}

}  // namespace

void CudaScaleTensors(const std::vector<Tensor>& tensors, const Tensor& factor, CUstream_st* stream) {
  LaunchAll<ScaleSlice>(tensors, factor.data_as<const float>(), stream);
}

void CudaFindNotFinite(const std::vector<Tensor>& tensors, const Tensor& found_inf, CUstream_st* stream) {
  LaunchAll<CheckSlice>(tensors, found_inf.data_as<float>(), stream);
}

void CudaCopyTensors(const std::vector<TensorCopy>& copies, CUstream_st* stream) {
  LaunchCopies<uint32_t>(copies, stream);
  LaunchCopies<uint16_t>(copies, stream);
  LaunchCopies<uint8_t>(copies, stream);
}

}  // namespace fsdp
