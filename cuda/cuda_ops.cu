// SPDX-License-Identifier: Apache-2.0
//
// The CUDA device's TensorOps. Each function captures its tensors in a launch that the stream calls in order
// (CudaStream::Issue): operands are checked there, so that errors come in stream order, and then one or two kernels are
// put on the CUDA stream.
//
// Elementwise kernels (Transform) process packs of 16 bytes if source and destination are aligned together, several of
// them in flight in a thread, and compute in float32, or float64 if either side is float64, with the host's operations
// in the host's order, so the bits agree. The squared norm is in squared_norm.cu, kernels over many tensors in
// multi_tensor.cu.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_ops.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/multi_tensor.h"
#include "fsdp/cuda/pack.h"
#include "fsdp/cuda/slice_batch.h"
#include "fsdp/cuda/squared_norm.h"
#include "fsdp/tensor/check_operands.h"

namespace fsdp {
namespace {

// The type in which cuda_ops.h specifies the computation.
template <typename A, typename B>
using ComputeType = std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>, double, float>;

// The operations that Transform applies to each pair of elements. kReads is true if the destination's old value is
// used.
template <typename From, typename To>
struct Divide {
  static constexpr bool kReads = false;
  using C = ComputeType<From, To>;
  C divisor;
  __device__ To operator()(From from, To) const { return Round<To>(Widen<C>(from) / divisor); }
};

template <typename From, typename To>
struct Multiply {
  static constexpr bool kReads = false;
  using C = ComputeType<From, To>;
  C factor;
  __device__ To operator()(From from, To) const { return Round<To>(Widen<C>(from) * factor); }
};

// Calls f with the operation that divides by `divisor`. For a power of 2 that is a product, which has the same bits and
// a tenth of the instructions.
template <typename From, typename To, typename F>
void WithDivision(double divisor, F f) {
  using C = ComputeType<From, To>;
  const auto d = static_cast<C>(divisor);
  int exponent;
  // The bound on the exponent keeps 1 / d a normal number, also in float32.
  if (std::frexp(std::abs(d), &exponent) == C{0.5} && std::abs(exponent) < 100) {
    f(Multiply<From, To>{1 / d});
  } else {
    f(Divide<From, To>{d});
  }
}

template <typename From, typename To>
struct Add {
  static constexpr bool kReads = true;
  using C = ComputeType<From, To>;
  __device__ To operator()(From from, To to) const { return Round<To>(Widen<C>(to) + Widen<C>(from)); }
};

template <typename From, typename To, typename F>
struct TransformOperands {
  const From* source;
  To* destination;
  F f;
};

// destination[i] = f(source[i], destination[i]) for N elements. Source and destination may be the same.
template <int N, typename From, typename To, typename F>
struct TransformPacks : PackSize<N> {
  using Operands = TransformOperands<From, To, F>;

  __device__ void Load(const Operands& o, int64_t i) {
    from = LoadPack<N>(o.source + i);
    if constexpr (F::kReads) to = LoadPack<N>(o.destination + i);
  }
  __device__ void Finish(const Operands& o, int64_t i) const {
    Pack<To, N> result;
#pragma unroll
    for (int k = 0; k < N; ++k) result.at[k] = o.f(from.at[k], to.at[k]);
    StoreGlobalPack(result, o.destination + i);
  }

  Pack<From, N> from;
  Pack<To, N> to{};
};

// Four loads of 16 bytes under way in each thread hide the latency of memory.
constexpr int kPacksInFlight = 4;

template <int N, typename From, typename To, typename F>
__global__ void __launch_bounds__(kThreads) Transform(TransformOperands<From, To, F> operands, PackedRange range) {
  ForEachLoaded<kPacksInFlight, TransformPacks<N, From, To, F>, TransformPacks<1, From, To, F>>(range, operands);
}

template <typename From, typename To, typename F>
void LaunchTransform(const Tensor& source, const Tensor& destination, F f, cudaStream_t stream) {
  // 16 bytes on the side of the larger elements; the other side moves fewer.
  constexpr int kPack = kPackBytes / std::max(sizeof(From), sizeof(To));
  const int64_t numel = source.numel();
  if (numel == 0) return;
  const TransformOperands<From, To, F> o = {source.data_as<From>(), destination.data_as<To>(), f};
  const PackedRange range = MakePackedRange(kPack, numel, {{o.source, sizeof(From)}, {o.destination, sizeof(To)}});
  Launch(Transform<kPack, From, To, F>, Blocks(range.threads(kPack, kPacksInFlight)), kThreads, 0, stream, o, range);
}

// An interval of CastDivideIntervals, for RunSlices.
template <typename From, typename To, typename F>
struct IntervalSlice {
  static constexpr int kPack = kPackBytes / std::max(sizeof(From), sizeof(To));
  const From* source;
  To* destination;
  F f;
  PackedRange range;

  template <int N>
  __device__ void Run(int64_t i) const {
    const Pack<From, N> from = LoadPack<N>(source + i);
    Pack<To, N> to{};
#pragma unroll
    for (int k = 0; k < N; ++k) to.at[k] = f(from.at[k], to.at[k]);
    StoreGlobalPack(to, destination + i);
  }
};

template <typename From, typename To, typename F>
void LaunchIntervals(const Tensor& source, const Tensor& destination, const std::vector<IntervalCopy>& intervals, F f,
                     cudaStream_t stream) {
  using Slice = IntervalSlice<From, To, F>;
  SliceLauncher<Slice> launcher(stream);
  for (const IntervalCopy& interval : intervals) {
    const From* from = source.data_as<From>() + interval.from;
    To* to = destination.data_as<To>() + interval.to;
    launcher.Add(
        {from, to, f, MakePackedRange(Slice::kPack, interval.numel, {{from, sizeof(From)}, {to, sizeof(To)}})});
  }
  launcher.Flush();
}

// A single thread does all, in the order of the host: there are few norms. The intrinsics keep the compiler from fusing
// operations that the host rounds one by one.
__global__ void FindClipCoefficient(const float* squared_norms, int64_t count, float max_norm, float* result) {
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total = __fadd_rn(total, squared_norms[i]);
  const float norm = __fsqrt_rn(total);
  const float factor = __fdiv_rn(max_norm, __fadd_rn(norm, 1e-6f));
  result[0] = norm;
  result[1] = factor > 1 ? 1 : factor;
}

// Calls `f` with the tag of a dtype that CheckFloats accepted.
template <typename F>
void WithFloatType(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(TypeTag<double>());
    case DType::kFloat32:
      return f(TypeTag<float>());
    case DType::kBFloat16:
      return f(TypeTag<__nv_bfloat16>());
    case DType::kFloat16:
      return f(TypeTag<__half>());
    default:
      CheckFailed("a kernel for a dtype that it does not take", __FILE__, __LINE__);
  }
}

// tensor/check_operands.h accepts any address; a GPU needs elements aligned to their size.
absl::Status CheckAligned(std::string_view op, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors) {
    if (IsAligned(t->data(), SizeOf(t->dtype()))) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(op), ": a ", std::string(DTypeName(t->dtype())),
                                                   " tensor is not aligned to its elements"));
  }
  return absl::OkStatus();
}

// Calls `f` with the tags of both tensors' dtypes.
template <typename F>
void WithFloatTypes(const Tensor& source, const Tensor& destination, F f) {
  WithFloatType(source.dtype(), [&](auto from) { WithFloatType(destination.dtype(), [&](auto to) { f(from, to); }); });
}

std::vector<Buffer> BuffersOf(const std::vector<Tensor>& tensors, const Tensor& scalar) {
  std::vector<Buffer> buffers = {scalar.buffer()};
  for (const Tensor& t : tensors) buffers.push_back(t.buffer());
  return buffers;
}

class CudaOps final : public TensorOps {
 public:
  void Zero(const Tensor& t, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    on.Issue({t.buffer()}, [t, device = on.ordinal()](cudaStream_t s) -> absl::Status {
      if (!t.defined()) return absl::InvalidArgumentError("zero: tensor is undefined");
      if (t.nbytes() == 0) return absl::OkStatus();
      return CudaStatus(cudaMemsetAsync(t.data(), 0, t.nbytes(), s), "cudaMemsetAsync", device);
    });
  }

  void CastDivide(const Tensor& source, const Tensor& destination, double divisor, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    const auto launch = [source, destination, divisor, device = on.ordinal()](cudaStream_t s) -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckPair("cast_divide", source, destination));
      FSDP_RETURN_IF_ERROR(CheckAligned("cast_divide", {&source, &destination}));
      if (divisor == 1 && source.dtype() == destination.dtype()) {
        if (source.nbytes() == 0 || source.data() == destination.data()) return absl::OkStatus();
        return CudaStatus(
            cudaMemcpyAsync(destination.data(), source.data(), source.nbytes(), cudaMemcpyDeviceToDevice, s),
            "cudaMemcpyAsync", device);
      }
      WithFloatTypes(source, destination, [&](auto from, auto to) {
        using From = typename decltype(from)::Type;
        using To = typename decltype(to)::Type;
        WithDivision<From, To>(divisor, [&](auto f) { LaunchTransform<From, To>(source, destination, f, s); });
      });
      return CudaLaunchStatus("cast_divide", device);
    };
    on.Issue({source.buffer(), destination.buffer()}, launch);
  }

  void CastDivideIntervals(const Tensor& source, const Tensor& destination, std::vector<IntervalCopy> intervals,
                           double divisor, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    on.Issue({source.buffer(), destination.buffer()},
             [source, destination, intervals = std::move(intervals), divisor,
              device = on.ordinal()](cudaStream_t s) -> absl::Status {
               FSDP_RETURN_IF_ERROR(CheckIntervals("cast_divide_intervals", source, destination, intervals));
               FSDP_RETURN_IF_ERROR(CheckAligned("cast_divide_intervals", {&source, &destination}));
               WithFloatTypes(source, destination, [&](auto from, auto to) {
                 using From = typename decltype(from)::Type;
                 using To = typename decltype(to)::Type;
                 WithDivision<From, To>(
                     divisor, [&](auto f) { LaunchIntervals<From, To>(source, destination, intervals, f, s); });
               });
               return CudaLaunchStatus("cast_divide_intervals", device);
             });
  }

  void Accumulate(const Tensor& source, const Tensor& destination, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    const auto launch = [source, destination, device = on.ordinal()](cudaStream_t s) -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckPair("accumulate", source, destination));
      FSDP_RETURN_IF_ERROR(CheckAligned("accumulate", {&source, &destination}));
      WithFloatTypes(source, destination, [&](auto from, auto to) {
        using From = typename decltype(from)::Type;
        using To = typename decltype(to)::Type;
        LaunchTransform<From, To>(source, destination, Add<From, To>{}, s);
      });
      return CudaLaunchStatus("accumulate", device);
    };
    on.Issue({source.buffer(), destination.buffer()}, launch);
  }

  void ScaleBy(std::vector<Tensor> tensors, const Tensor& factor, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    std::vector<Buffer> uses = BuffersOf(tensors, factor);
    on.Issue(std::move(uses),
             [tensors = std::move(tensors), factor, device = on.ordinal()](cudaStream_t s) -> absl::Status {
               FSDP_RETURN_IF_ERROR(CheckScalar("scale_by", "factor", factor));
               for (const Tensor& t : tensors) {
                 FSDP_RETURN_IF_ERROR(CheckFloats("scale_by", "tensor", t));
                 FSDP_RETURN_IF_ERROR(CheckAligned("scale_by", {&t, &factor}));
               }
               CudaScaleTensors(tensors, factor, s);
               return CudaLaunchStatus("scale_by", device);
             });
  }

  void AccumulateSquaredNorm(std::vector<Tensor> sources, const Tensor& result, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    const auto nbytes = MaxPartialSums(sources.size()) * static_cast<int64_t>(sizeof(double));
    // Taken on the caller's thread, because the launch may run on the stream's thread, which must not use the
    // CudaStream.
    const absl::StatusOr<Buffer> partial_sums = on.Workspace(nbytes);
    std::vector<Buffer> uses = BuffersOf(sources, result);
    if (partial_sums.ok()) uses.push_back(*partial_sums);
    on.Issue(
        std::move(uses),
        [sources = std::move(sources), result, partial_sums, device = on.ordinal()](cudaStream_t s) -> absl::Status {
          FSDP_RETURN_IF_ERROR(partial_sums.status());
          FSDP_RETURN_IF_ERROR(CheckScalar("accumulate_squared_norm", "result", result));
          for (const Tensor& source : sources) {
            FSDP_RETURN_IF_ERROR(CheckFloats("accumulate_squared_norm", "source", source));
            FSDP_RETURN_IF_ERROR(CheckAligned("accumulate_squared_norm", {&source, &result}));
          }
          CudaSquaredNorm(sources, result, reinterpret_cast<double*>(partial_sums->data()), s);
          return CudaLaunchStatus("accumulate_squared_norm", device);
        });
  }

  void CheckFinite(std::vector<Tensor> tensors, const Tensor& found_inf, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    std::vector<Buffer> uses = BuffersOf(tensors, found_inf);
    on.Issue(std::move(uses),
             [tensors = std::move(tensors), found_inf, device = on.ordinal()](cudaStream_t s) -> absl::Status {
               FSDP_RETURN_IF_ERROR(CheckScalar("check_finite", "found_inf", found_inf));
               for (const Tensor& t : tensors) {
                 FSDP_RETURN_IF_ERROR(CheckFloats("check_finite", "tensor", t));
                 FSDP_RETURN_IF_ERROR(CheckAligned("check_finite", {&t, &found_inf}));
               }
               CudaFindNotFinite(tensors, found_inf, s);
               return CudaLaunchStatus("check_finite", device);
             });
  }

  void CopyTensors(std::vector<TensorCopy> copies, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    std::vector<Buffer> uses;
    for (const TensorCopy& copy : copies) {
      uses.push_back(copy.source.buffer());
      uses.push_back(copy.destination.buffer());
    }
    on.Issue(std::move(uses), [copies = std::move(copies), device = on.ordinal()](cudaStream_t s) -> absl::Status {
      for (const TensorCopy& copy : copies) FSDP_RETURN_IF_ERROR(CheckCopy(copy.source, copy.destination));
      CudaCopyTensors(copies, s);
      return CudaLaunchStatus("copy_tensors", device);
    });
  }

  void ClipCoefficient(const Tensor& squared_norms, float max_norm, const Tensor& result,
                       Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    const auto launch = [squared_norms, max_norm, result, device = on.ordinal()](cudaStream_t s) -> absl::Status {
      FSDP_RETURN_IF_ERROR(CheckClipOperands(squared_norms, result));
      FSDP_RETURN_IF_ERROR(CheckAligned("clip_coefficient", {&squared_norms, &result}));
      Launch(FindClipCoefficient, 1, 1, 0, s, squared_norms.data_as<float>(), squared_norms.numel(), max_norm,
             result.data_as<float>());
      return CudaLaunchStatus("clip_coefficient", device);
    };
    on.Issue({squared_norms.buffer(), result.buffer()}, launch);
  }
};

}  // namespace

const TensorOps& CudaTensorOps() {
  static const CudaOps ops;
  return ops;
}

}  // namespace fsdp
