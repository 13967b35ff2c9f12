// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/benchmark/kernel_cases.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// Two parameters' chunks of eight ranks, from rows of ranks to rows of parameters.
std::vector<IntervalCopy> Transposed(int64_t numel) {
  constexpr int64_t kParameters = 2, kRanks = 8;
  const int64_t chunk = numel / kParameters / kRanks;
  std::vector<IntervalCopy> copies;
  for (int64_t i = 0; i < kParameters; ++i) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      copies.push_back({(rank * kParameters + i) * chunk, (i * kRanks + rank) * chunk, chunk});
    }
  }
  return copies;
}

AdamWUpdate MakeUpdate(KernelRunner& runner, int64_t numel, DType dtype) {
  return {.scalars = {.negative_decay = -1e-4f,
                      .one_minus_beta1 = 0.1f,
                      .beta2 = 0.999f,
                      .one_minus_beta2 = 0.001f,
                      .negative_step_size = -1e-3f,
                      .sqrt_bias_correction2 = 0.5f,
                      .eps = 1e-8f},
          .data = runner.Random(DType::kFloat32, {numel}),
          .grad = runner.Random(dtype, {numel}),
          .exp_avg = runner.Random(DType::kFloat32, {numel}),
          .exp_avg_sq = runner.Zeros(DType::kFloat32, {numel})};  // a square, so not negative
}

absl::Status MeasureAdamW(KernelRunner& runner, const UpdateOps& ops, int64_t numel, DType dtype) {
  const std::string text = absl::StrCat(numel);
  const int64_t bytes = 6 * numel * SizeOf(DType::kFloat32) + numel * SizeOf(dtype);
  FSDP_RETURN_IF_ERROR(runner.Measure({"adamw", text, dtype, bytes}, [&] {
    const AdamWUpdate update = MakeUpdate(runner, numel, dtype);
    return [&, update] { ops.AdamW({update}, runner.stream()); };
  }));
  const int64_t copied = numel * SizeOf(DType::kBFloat16);
  return runner.Measure({"adamw, scaled, with bfloat16 copy", text, dtype, bytes + copied}, [&] {
    AdamWUpdate update = MakeUpdate(runner, numel, dtype);
    update.extras = {.grad_factor = runner.Random(DType::kFloat32, {1}),
                     .found_inf = runner.Zeros(DType::kFloat32, {1}),
                     .compute_copy = runner.Zeros(DType::kBFloat16, {numel})};
    return [&, update] { ops.AdamW({update}, runner.stream()); };
  });
}

}  // namespace

absl::Status MeasureFlatBuffers(KernelRunner& runner, const DeviceKernels& kernels, int64_t numel, DType dtype) {
  const TensorOps& ops = runner.device().ops();
  const std::string text = absl::StrCat(numel);
  const int64_t nbytes = numel * SizeOf(dtype), wide = numel * SizeOf(DType::kFloat32);
  Stream& stream = runner.stream();
  const auto to_other = [&](DType from, DType to, const auto& kernel) {
    return [&runner, &kernel, numel, from, to] {
      const Tensor source = runner.Random(from, {numel}), destination = runner.Zeros(to, {numel});
      return [&kernel, source, destination] { kernel(source, destination); };
    };
  };
  const auto divide = [&](const Tensor& from, const Tensor& to) { ops.CastDivide(from, to, 8, stream); };
  const auto cast = [&](const Tensor& from, const Tensor& to) { ops.CastDivide(from, to, 1, stream); };
  const auto add = [&](const Tensor& from, const Tensor& to) { ops.Accumulate(from, to, stream); };
  const auto move = [&](const Tensor& from, const Tensor& to) {
    ops.CastDivideIntervals(from, to, Transposed(numel), 1, stream);
  };
  FSDP_RETURN_IF_ERROR(runner.Measure({"cast to float32 and divide", text, dtype, nbytes + wide},
                                      to_other(dtype, DType::kFloat32, divide)));
  FSDP_RETURN_IF_ERROR(
      runner.Measure({"cast of float32", text, dtype, wide + nbytes}, to_other(DType::kFloat32, dtype, cast)));
  FSDP_RETURN_IF_ERROR(runner.Measure({"accumulate", text, dtype, 3 * nbytes}, to_other(dtype, dtype, add)));
  FSDP_RETURN_IF_ERROR(runner.Measure({"intervals", text, dtype, 2 * nbytes}, to_other(dtype, dtype, move)));

  const Tensor one = runner.Zeros(DType::kFloat32, {1});
  const auto in_place = [&](const auto& kernel) {
    return [&runner, &kernel, numel, dtype] {
      const Tensor values = runner.Random(dtype, {numel});
      return [&kernel, values] { kernel(values); };
    };
  };
  const auto norm = [&](const Tensor& values) { ops.AccumulateSquaredNorm({values}, one, stream); };
  const auto check = [&](const Tensor& values) { ops.CheckFinite({values}, one, stream); };
  FSDP_RETURN_IF_ERROR(runner.Measure({"squared norm", text, dtype, nbytes}, in_place(norm)));
  FSDP_RETURN_IF_ERROR(runner.Measure({"check finite", text, dtype, nbytes}, in_place(check)));
  return MeasureAdamW(runner, *kernels.updates, numel, dtype);
}

}  // namespace fsdp
