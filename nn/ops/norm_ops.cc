// SPDX-License-Identifier: Apache-2.0
//
// The norms of LayerOps; layer_ops.cc describes the checks. Shapes are compared with x, or the sum that is normed:
// [M, C].
#include <string_view>

#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/nn/ops/operand_check.h"

namespace fsdp {
namespace {

// The operands of a norm of x, by their shape.
class NormCheck {
 public:
  NormCheck(std::string_view kernel, std::string_view name, const Tensor& x)
      : check_(kernel), x_(x), has_rows_(x.shape().rank() == 2) {
    // x is checked first; every other operand is compared with its rows and columns.
    check_.Matrix(name, x);
    check_.FloatDType({&x});
  }

  // [M, C], and [C], of x's dtype.
  void Matrix(std::string_view name, const Tensor& t) { Operand(name, t, x_.numel()); }
  void Vector(std::string_view name, const Tensor& t) { Operand(name, t, has_rows_ ? x_.shape().dim(1) : 0); }
  // float64 [M].
  void Statistic(std::string_view name, const Tensor& t) {
    check_.Numel(name, t, DType::kFloat64, has_rows_ ? x_.shape().dim(0) : 0);
  }
  // A frozen parameter has no gradient: an undefined tensor leaves it out.
  void Gradient(std::string_view name, const ParameterGrad& g) {
    if (g.defined()) Vector(name, g.grad);
  }

  bool FailsOn(Stream& stream) { return check_.FailsOn(stream); }

 private:
  void Operand(std::string_view name, const Tensor& t, int64_t numel) {
    // One dtype for all: kernels are templates over a single element type.
    check_.FloatDType({&x_, &t});
    check_.Numel(name, t, numel);
  }

  OperandCheck check_;
  const Tensor& x_;
  const bool has_rows_;  // if not, Matrix has noted the failure
};

}  // namespace

void LayerOps::LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& out,
                         const Tensor& mean, const Tensor& rstd, Stream& stream) const {
  NormCheck check("layer norm", "x", x);
  check.Vector("weight", weight);
  check.Vector("bias", bias);
  check.Matrix("out", out);
  check.Statistic("mean", mean);
  check.Statistic("rstd", rstd);
  if (check.FailsOn(stream)) return;
  DoLayerNorm(x, weight, bias, eps, out, mean, rstd, stream);
}

void LayerOps::LayerNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& mean,
                                 const Tensor& rstd, const Tensor& grad_x, const ParameterGrad& grad_weight,
                                 const ParameterGrad& grad_bias, Stream& stream) const {
  NormCheck check("layer norm backward", "x", x);
  check.Matrix("grad_out", grad_out);
  check.Vector("weight", weight);
  check.Statistic("mean", mean);
  check.Statistic("rstd", rstd);
  check.Matrix("grad_x", grad_x);
  check.Gradient("grad_weight", grad_weight);
  check.Gradient("grad_bias", grad_bias);
  if (check.FailsOn(stream)) return;
  DoLayerNormBackward(grad_out, x, weight, mean, rstd, grad_x, grad_weight, grad_bias, stream);
}

void LayerOps::RmsNorm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, const Tensor& rstd,
                       Stream& stream) const {
  NormCheck check("rms norm", "x", x);
  check.Vector("weight", weight);
  check.Matrix("out", out);
  check.Statistic("rstd", rstd);
  if (check.FailsOn(stream)) return;
  DoRmsNorm(x, weight, eps, out, rstd, stream);
}

void LayerOps::RmsNormBackward(const Tensor& grad_out, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                               const Tensor& grad_x, const ParameterGrad& grad_weight, Stream& stream) const {
  NormCheck check("rms norm backward", "x", x);
  check.Matrix("grad_out", grad_out);
  check.Vector("weight", weight);
  check.Statistic("rstd", rstd);
  check.Matrix("grad_x", grad_x);
  check.Gradient("grad_weight", grad_weight);
  if (check.FailsOn(stream)) return;
  DoRmsNormBackward(grad_out, x, weight, rstd, grad_x, grad_weight, stream);
}

void LayerOps::AddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps,
                            const Tensor& out, const Tensor& mean, const Tensor& rstd, Stream& stream) const {
  NormCheck check("add and layer norm", "x", input.x);
  check.Matrix("residual", input.residual);
  check.Vector("weight", weight);
  check.Vector("bias", bias);
  check.Matrix("sum", input.sum);
  check.Matrix("out", out);
  check.Statistic("mean", mean);
  check.Statistic("rstd", rstd);
  if (check.FailsOn(stream)) return;
  DoAddLayerNorm(input, weight, bias, eps, out, mean, rstd, stream);
}

void LayerOps::AddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out,
                          const Tensor& rstd, Stream& stream) const {
  NormCheck check("add and rms norm", "x", input.x);
  check.Matrix("residual", input.residual);
  check.Vector("weight", weight);
  check.Matrix("sum", input.sum);
  check.Matrix("out", out);
  check.Statistic("rstd", rstd);
  if (check.FailsOn(stream)) return;
  DoAddRmsNorm(input, weight, eps, out, rstd, stream);
}

void LayerOps::AddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                    const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                                    const NormGrads& grads, Stream& stream) const {
  // Backward does not need the addends: both have the gradient of the sum.
  NormCheck check("add and layer norm backward", "sum", sum);
  check.Matrix("grad_out", grad_out);
  check.Matrix("grad_sum", grad_sum);
  check.Vector("weight", weight);
  check.Statistic("mean", mean);
  check.Statistic("rstd", rstd);
  check.Matrix("grad_x", grads.x);
  check.Gradient("grad_weight", grads.weight);
  check.Gradient("grad_bias", grads.bias);
  if (check.FailsOn(stream)) return;
  DoAddLayerNormBackward(grad_out, grad_sum, sum, weight, mean, rstd, grads, stream);
}

void LayerOps::AddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                  const Tensor& weight, const Tensor& rstd, const NormGrads& grads,
                                  Stream& stream) const {
  NormCheck check("add and rms norm backward", "sum", sum);
  check.Matrix("grad_out", grad_out);
  check.Matrix("grad_sum", grad_sum);
  check.Vector("weight", weight);
  check.Statistic("rstd", rstd);
  check.Matrix("grad_x", grads.x);
  check.Gradient("grad_weight", grads.weight);
  if (check.FailsOn(stream)) return;
  DoAddRmsNormBackward(grad_out, grad_sum, sum, weight, rstd, grads, stream);
}

void LayerOps::DoAddLayerNorm(const ResidualSum& input, const Tensor& weight, const Tensor& bias, float eps,
                              const Tensor& out, const Tensor& mean, const Tensor& rstd, Stream& stream) const {
  DoAdd(input.x, input.residual, input.sum, stream);
  DoLayerNorm(input.sum, weight, bias, eps, out, mean, rstd, stream);
}

void LayerOps::DoAddRmsNorm(const ResidualSum& input, const Tensor& weight, float eps, const Tensor& out,
                            const Tensor& rstd, Stream& stream) const {
  DoAdd(input.x, input.residual, input.sum, stream);
  DoRmsNorm(input.sum, weight, eps, out, rstd, stream);
}

void LayerOps::DoAddLayerNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                      const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                                      const NormGrads& grads, Stream& stream) const {
  DoLayerNormBackward(grad_out, sum, weight, mean, rstd, grads.x, grads.weight, grads.bias, stream);
  DoAdd(grads.x, grad_sum, grads.x, stream);
}

void LayerOps::DoAddRmsNormBackward(const Tensor& grad_out, const Tensor& grad_sum, const Tensor& sum,
                                    const Tensor& weight, const Tensor& rstd, const NormGrads& grads,
                                    Stream& stream) const {
  DoRmsNormBackward(grad_out, sum, weight, rstd, grads.x, grads.weight, stream);
  DoAdd(grads.x, grad_sum, grads.x, stream);
}

}  // namespace fsdp
