// SPDX-License-Identifier: Apache-2.0
//
// A thread per element loads that element of every row, in the order of ranks, and writes one result: every input byte
// is read once and the sum stays in a register. A tree over rows would need more memory traffic and would change the
// order of summation, and with it the bits: this kernel must give the same bits as host/reduce_rows.h.
#include <cstdint>
#include <type_traits>

#include "fsdp/collectives/cuda/reduce_rows_cuda.h"
#include "fsdp/cuda/float_types.h"
#include "fsdp/cuda/launch.h"
#include "fsdp/cuda/pack.h"

namespace fsdp {
namespace {

// Passed by value, as a kernel parameter: the pointers need not be copied to the GPU before the kernel starts.
struct Rows {
  const void* at[kMaxRowsOnGpu];
};

// The type of the sums: float32 for 16-bit floats, else the elements' own.
template <typename T>
using SumOf = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

// NaN wins, as on the host.
template <ReduceOp op, typename S>
__device__ S Combine(S a, S b) {
  if constexpr (op == ReduceOp::kMin) {
    return b < a || b != b ? b : a;
  } else if constexpr (op == ReduceOp::kMax) {
    return b > a || b != b ? b : a;
  } else if constexpr (std::is_integral_v<S>) {
    using Unsigned = std::make_unsigned_t<S>;
    return static_cast<S>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

template <ReduceOp op, typename T>
__global__ void Reduce(Rows rows, int n, T* destination, int64_t numel) {
  using S = SumOf<T>;
  ForEach(numel, [&](int64_t i) {
    S sum = Widen<S>(static_cast<const T*>(rows.at[0])[i]);
    for (int r = 1; r < n; ++r) sum = Combine<op>(sum, Widen<S>(static_cast<const T*>(rows.at[r])[i]));
    if constexpr (op == ReduceOp::kAvg) sum /= static_cast<S>(n);
    destination[i] = Round<T>(sum);
  });
}

template <typename T>
void LaunchReduce(ReduceOp op, const Reduction& reduction, CUstream_st* stream) {
  Rows rows = {};
  const auto n = static_cast<int>(reduction.rows.size());
  for (int r = 0; r < n; ++r) rows.at[r] = reduction.rows[r];
  T* const to = reinterpret_cast<T*>(reduction.destination);
  const auto launch = [&](auto kernel) {
    Launch(kernel, Blocks(reduction.numel), kThreads, 0, stream, rows, n, to, reduction.numel);
  };
  switch (op) {
    case ReduceOp::kSum:
      return launch(Reduce<ReduceOp::kSum, T>);
    case ReduceOp::kAvg:
      return launch(Reduce<ReduceOp::kAvg, T>);
    case ReduceOp::kMin:
      return launch(Reduce<ReduceOp::kMin, T>);
    case ReduceOp::kMax:
      return launch(Reduce<ReduceOp::kMax, T>);
  }
}

}  // namespace

void ReduceRowsOnGpu(DType dtype, ReduceOp op, const Reduction& reduction, CUstream_st* stream) {
  // CUDA refuses a launch of no blocks.
  if (reduction.numel == 0) return;
  switch (dtype) {
    case DType::kFloat64:
      return LaunchReduce<double>(op, reduction, stream);
    case DType::kFloat32:
      return LaunchReduce<float>(op, reduction, stream);
    case DType::kBFloat16:
      return LaunchReduce<__nv_bfloat16>(op, reduction, stream);
    case DType::kFloat16:
      return LaunchReduce<__half>(op, reduction, stream);
    case DType::kInt64:
      return LaunchReduce<int64_t>(op, reduction, stream);
    case DType::kInt32:
      return LaunchReduce<int32_t>(op, reduction, stream);
    default:
      return;  // refused by CheckReduceScatter and CheckAllReduce
  }
}

}  // namespace fsdp
