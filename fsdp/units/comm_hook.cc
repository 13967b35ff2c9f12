// SPDX-License-Identifier: Apache-2.0
//
// The two hooks differ in the dtype that they communicate. The compressing one gets the gradient in the compute dtype
// (low_precision), because it would immediately narrow a widened one.
#include "fsdp/fsdp/units/comm_hook.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/reduction_rule.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// Averages `grad` over `group`, dividing before and after the sum, into `output`, this rank's slice, or in place if
// `output` is undefined.
void Reduce(const Tensor& grad, const Tensor& output, ProcessGroup& group, Stream& stream) {
  const TensorOps& ops = stream.device().ops();
  const DivideFactors factors = GradientDivideFactors(group.size());
  if (factors.pre != 1) ops.CastDivide(grad, grad, factors.pre, stream);
  if (output.defined()) {
    group.ReduceScatter(grad, output, ReduceOp::kSum, stream);
  } else {
    group.AllReduce(grad, ReduceOp::kSum, stream);
  }
  const Tensor& result = output.defined() ? output : grad;
  if (factors.post != 1) ops.CastDivide(result, result, factors.post, stream);
}

}  // namespace

CommHook DefaultCommHook() {
  return {.reduce = [](const Tensor& grad, const Tensor& output, ProcessGroup& group, Stream& stream) {
    Reduce(grad, output, group, stream);
    return absl::OkStatus();
  }};
}

// A sharded unit's own slice is `output`, in the wider dtype, which the collective cannot write. So it writes this
// rank's slice of `compressed`, in place, and one cast fills `output`.
CommHook CompressCommHook(DType dtype) {
  const auto reduce = [dtype](const Tensor& grad, const Tensor& output, ProcessGroup& group,
                              Stream& stream) -> absl::Status {
    const TensorOps& ops = stream.device().ops();
    FSDP_ASSIGN_OR_RETURN(const Tensor compressed, Tensor::Empty(stream.device(), dtype, grad.shape()));
    ops.CastDivide(grad, compressed, 1, stream);
    if (!output.defined()) {
      Reduce(compressed, Tensor(), group, stream);
      ops.CastDivide(compressed, grad, 1, stream);
      return absl::OkStatus();
    }
    const int64_t numel = output.numel();
    const Tensor own = compressed.Slice({group.rank() * numel, (group.rank() + 1) * numel});
    Reduce(compressed, own, group, stream);
    ops.CastDivide(own, output, 1, stream);
    return absl::OkStatus();
  };
  return {.reduce = reduce, .low_precision = true};
}

}  // namespace fsdp
