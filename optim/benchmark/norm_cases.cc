// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/optim/benchmark/kernel_cases.h"

namespace fsdp {
namespace {

constexpr float kEps = 1e-5f;

// Operands of a norm after a residual addition, forward and backward. The plain norm is of `sum`.
struct NormOperands {
  ResidualSum input;
  Tensor weight, bias, out, mean, rstd, grad_out, grad_sum;
  NormGrads grads;
};

NormOperands MakeOperands(KernelRunner& runner, const ModelSizes& sizes, DType dtype) {
  const Shape shape = {sizes.rows(), sizes.width}, columns = {sizes.width}, rows = {sizes.rows()};
  return {.input = {runner.Random(dtype, shape), runner.Random(dtype, shape), runner.Random(dtype, shape)},
          .weight = runner.Random(dtype, columns),
          .bias = sizes.is_llama ? Tensor() : runner.Random(dtype, columns),
          .out = runner.Zeros(dtype, shape),
          .mean = runner.Zeros(DType::kFloat64, rows),
          .rstd = runner.Zeros(DType::kFloat64, rows),
          .grad_out = runner.Random(dtype, shape),
          .grad_sum = runner.Random(dtype, shape),
          .grads = {runner.Zeros(dtype, shape), runner.Zeros(dtype, columns),
                    sizes.is_llama ? Tensor() : runner.Zeros(dtype, columns)}};
}

// The kernels of one of the two norms on operands of MakeOperands.
class Norm {
 public:
  Norm(const LayerOps& ops, bool is_rms, Stream& stream) : ops_(ops), is_rms_(is_rms), stream_(stream) {}

  void Forward(const NormOperands& o) const {
    if (is_rms_) return ops_.RmsNorm(o.input.sum, o.weight, kEps, o.out, o.rstd, stream_);
    ops_.LayerNorm(o.input.sum, o.weight, o.bias, kEps, o.out, o.mean, o.rstd, stream_);
  }
  void Backward(const NormOperands& o) const {
    if (is_rms_) {
      return ops_.RmsNormBackward(o.grad_out, o.input.sum, o.weight, o.rstd, o.grads.x, o.grads.weight, stream_);
    }
    ops_.LayerNormBackward(o.grad_out, o.input.sum, o.weight, o.mean, o.rstd, o.grads.x, o.grads.weight, o.grads.bias,
                           stream_);
  }
  void AddForward(const NormOperands& o) const {
    if (is_rms_) return ops_.AddRmsNorm(o.input, o.weight, kEps, o.out, o.rstd, stream_);
    ops_.AddLayerNorm(o.input, o.weight, o.bias, kEps, o.out, o.mean, o.rstd, stream_);
  }
  void AddBackward(const NormOperands& o) const {
    if (is_rms_) {
      return ops_.AddRmsNormBackward(o.grad_out, o.grad_sum, o.input.sum, o.weight, o.rstd, o.grads, stream_);
    }
    ops_.AddLayerNormBackward(o.grad_out, o.grad_sum, o.input.sum, o.weight, o.mean, o.rstd, o.grads, stream_);
  }

 private:
  const LayerOps& ops_;
  const bool is_rms_;
  Stream& stream_;
};

}  // namespace

absl::Status MeasureNorms(KernelRunner& runner, const DeviceKernels& kernels, const ModelSizes& sizes, DType dtype) {
  const int64_t nbytes = sizes.rows() * sizes.width * SizeOf(dtype);
  const std::string shape = absl::StrCat(sizes.name, " ", sizes.rows(), "x", sizes.width);
  const std::string name = sizes.is_llama ? "rms norm" : "layer norm";
  const Norm norm(*kernels.layers, sizes.is_llama, runner.stream());
  // Backward reads what forward has kept.
  const auto operands = [&] {
    NormOperands made = MakeOperands(runner, sizes, dtype);
    norm.Forward(made);
    return made;
  };
  FSDP_RETURN_IF_ERROR(
      runner.Measure({name, shape, dtype, 2 * nbytes}, [&] { return [&norm, o = operands()] { norm.Forward(o); }; }));
  FSDP_RETURN_IF_ERROR(runner.Measure({name + " backward", shape, dtype, 3 * nbytes},
                                      [&] { return [&norm, o = operands()] { norm.Backward(o); }; }));
  FSDP_RETURN_IF_ERROR(runner.Measure({"add and " + name, shape, dtype, 4 * nbytes},
                                      [&] { return [&norm, o = operands()] { norm.AddForward(o); }; }));
  return runner.Measure({"add and " + name + " backward", shape, dtype, 4 * nbytes},
                        [&] { return [&norm, o = operands()] { norm.AddBackward(o); }; });
}

}  // namespace fsdp
