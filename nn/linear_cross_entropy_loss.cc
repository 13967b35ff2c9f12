// SPDX-License-Identifier: Apache-2.0
//
// With x [N, C], the head's weight W [V, C] and chunks of n rows:
//
//   forward    for each chunk: logits = x_k W^T; loss += n / N of their mean, and logits become their gradient, in one
//              kernel; rows k of grad_x = logits W; grad_W += logits^T x_k, in float32
//   backward   the parameters' gradients += grad_W, rounded once; return grad_x
//
// So the head is multiplied three times, as without chunks, and the logits of only one chunk exist. All is done in
// forward, because the loss must exist before backward, and computing logits again there would be a fourth product.
//
// The head's own forward and backward do the work, with or without bias and adapter. While they run on a chunk, the
// gradients of its parameters are bound to float32 memory of this pass, which the first chunk overwrites.
#include "fsdp/nn/linear_cross_entropy_loss.h"

#include <algorithm>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/last_dim.h"
#include "fsdp/nn/module_call.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/ordered_memory.h"

namespace fsdp {
namespace {

absl::Status CheckOperands(const Linear& head, const Tensor& x, const Tensor& targets) {
  const int64_t in_features = head.own_parameters().front().second->shape.dim(1);
  FSDP_RETURN_IF_ERROR(CheckLastDim("linear cross entropy", x, in_features));
  const int64_t rows = x.numel() / in_features;
  if (targets.defined() && targets.dtype() == DType::kInt32 && targets.numel() == rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "linear cross entropy: targets ",
      targets.defined() ? absl::StrCat(std::string(DTypeName(targets.dtype())), " ", targets.shape().ToString())
                        : "undefined",
      " for x ", x.shape().ToString(), ", expected int32 with ", rows, " elements"));
}

absl::Status CheckHead(Linear& head) {
  if (typeid(head) != typeid(Linear)) {
    return absl::InvalidArgumentError(absl::StrCat("linear cross entropy: the head is a ",
                                                   std::string(head.type_name()),
                                                   ", expected a Linear: compute the loss from its logits"));
  }
  for (const auto& [name, module] : head.NamedModules()) {
    if (module == &head || module->hooks() == nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("linear cross entropy: ", name,
                                                      " of the head is a unit of its own, expected it in the head's "
                                                      "unit: leave it out of the wrap policy"));
  }
  return absl::OkStatus();
}

// Each parameter of the head and of its adapter.
std::vector<Parameter*> ParametersOf(Linear& head) {
  std::vector<Parameter*> parameters;
  for (const auto& [name, parameter] : head.NamedParameters()) parameters.push_back(parameter.get());
  return parameters;
}

// While it lives, the gradients of the parameters that require them are float32 tensors of this pass.
class PassGrads final {
 public:
  explicit PassGrads(Linear& head) {
    for (Parameter* parameter : ParametersOf(head)) {
      bound_.push_back({parameter, parameter->grad, parameter->grad_used, parameter->zero_grad_stream});
    }
  }
  ~PassGrads() {
    for (Bound& b : bound_) {
      b.parameter->grad = std::move(b.grad);
      b.parameter->grad_used = b.grad_used;
      b.parameter->zero_grad_stream = b.zero_grad_stream;
    }
  }
  PassGrads(const PassGrads&) = delete;
  PassGrads& operator=(const PassGrads&) = delete;

  absl::Status Allocate(Tape& tape) {
    for (const Bound& b : bound_) {
      b.parameter->grad = Tensor();
      if (!b.parameter->requires_grad) continue;
      FSDP_ASSIGN_OR_RETURN(b.parameter->grad, tape.Empty(DType::kFloat32, b.parameter->shape));
      b.parameter->zero_grad_stream = &tape.stream();  // the first chunk overwrites
    }
    return absl::OkStatus();
  }

  // In the order of ParametersOf; undefined for a parameter that does not require a gradient.
  absl::Status Save(Tape& tape) const {
    for (const Bound& b : bound_) {
      // Zero if nothing was written, because there were no rows.
      if (b.parameter->requires_grad) FSDP_RETURN_IF_ERROR(b.parameter->Grad().status());
      tape.Save(b.parameter->grad);
    }
    return absl::OkStatus();
  }

 private:
  struct Bound {
    Parameter* parameter;
    Tensor grad;
    bool grad_used;
    Stream* zero_grad_stream;
  };
  std::vector<Bound> bound_;
};

Tensor RowsOf(const Tensor& rows, const Interval& interval) {
  const int64_t columns = rows.shape().dim(1);
  return rows.Slice({interval.begin * columns, interval.end * columns}).View({interval.end - interval.begin, columns});
}

bool IsLoss(const Tensor& t) { return t.defined() && t.dtype() == DType::kFloat32 && t.shape() == Shape({1}); }

// Loss and gradient, in place of the logits, with the share of the chunk in the mean over all rows.
absl::StatusOr<CrossEntropyLoss::LossAndGradient> ScaledLoss(const Tensor& logits, const Tensor& targets,
                                                             const LossScale& scale, double share, Tape& tape) {
  if (const auto* device = std::get_if<DeviceScale>(&scale)) {
    const DeviceScale shared = {device->scale, static_cast<float>(device->divisor / share)};
    return CrossEntropyLoss().ForwardBackward(logits, targets, shared, tape);
  }
  return CrossEntropyLoss().ForwardBackward(logits, targets, static_cast<float>(std::get<float>(scale) * share), tape);
}

// The gradient of `parameter` += grad, which is float32, rounded once.
absl::Status AddGrad(const Tensor& grad, Parameter& parameter, Tape& tape) {
  const TensorOps& ops = tape.device().ops();
  FSDP_ASSIGN_OR_RETURN(const ParameterGrad to, parameter.GradToWrite());
  if (to.accumulate) {
    ops.Accumulate(grad, to.grad, tape.stream());
  } else {
    ops.CastDivide(grad, to.grad, 1, tape.stream());
  }
  return absl::OkStatus();
}

}  // namespace

struct LinearCrossEntropyLoss::Rows {
  Tensor x;        // [n, in_features]
  Tensor targets;  // [n]
};

absl::StatusOr<Tensor> LinearCrossEntropyLoss::Forward(Linear& head, const Tensor& x, const Tensor& targets,
                                                       Tape& tape) const {
  FSDP_RETURN_IF_ERROR(CheckHead(head));
  FSDP_RETURN_IF_ERROR(CheckOperands(head, x, targets));
  Tensor loss;
  const auto forward = [&](const TensorList& inputs, Tape& on) -> absl::StatusOr<TensorList> {
    FSDP_ASSIGN_OR_RETURN(const Tensor contiguous, on.Contiguous(inputs[0]));
    const Rows rows = {AsRows(contiguous), inputs[1].View({inputs[1].numel()})};
    FSDP_ASSIGN_OR_RETURN(loss, on.keep_for_backward() ? LossAndGrads(head, rows, inputs[0].shape(), on)
                                                       : AllChunks(head, rows, Tensor(), on));
    return TensorList{Tensor()};
  };
  // The loss passes by the hooks of the head, if it has any, which may cast outputs to the dtype of activations.
  FSDP_RETURN_IF_ERROR(CallForward(head, {x, targets}, tape, forward).status());
  return loss;
}

// The loss is saved last, so that Backward can tell its own tensors from those of another module.
absl::StatusOr<Tensor> LinearCrossEntropyLoss::LossAndGrads(Linear& head, const Rows& rows, const Shape& shape,
                                                            Tape& tape) const {
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_x, tape.Empty(rows.x.dtype(), rows.x.shape()));
  PassGrads grads(head);
  FSDP_RETURN_IF_ERROR(grads.Allocate(tape));
  FSDP_ASSIGN_OR_RETURN(Tensor loss, AllChunks(head, rows, grad_x, tape));
  tape.Save(grad_x.View(shape));
  FSDP_RETURN_IF_ERROR(grads.Save(tape));
  tape.Save(loss);
  return loss;
}

absl::StatusOr<Tensor> LinearCrossEntropyLoss::AllChunks(Linear& head, const Rows& rows, const Tensor& grad_x,
                                                         Tape& tape) const {
  const int64_t num_rows = rows.x.shape().dim(0);
  const int64_t num_chunks = std::clamp<int64_t>(num_chunks_, 1, std::max<int64_t>(1, num_rows));
  const int64_t chunk_rows = (num_rows + num_chunks - 1) / num_chunks;
  const TensorOps& ops = tape.device().ops();
  FSDP_ASSIGN_OR_RETURN(Tensor loss, tape.Empty(DType::kFloat32, {1}));
  int64_t begin = 0;
  do {
    const Interval interval = {begin, std::min(begin + chunk_rows, num_rows)};
    const int64_t size = interval.end - interval.begin;
    // Without rows the loss is that of CrossEntropyLoss, a NaN.
    const double share = num_rows == 0 ? 1 : static_cast<double>(size) / static_cast<double>(num_rows);
    const Rows chunk = {RowsOf(rows.x, interval), rows.targets.Slice(interval)};
    FSDP_ASSIGN_OR_RETURN(const Tensor part,
                          Chunk(head, chunk, share, grad_x.defined() ? RowsOf(grad_x, interval) : Tensor(), tape));
    ops.CastDivide(part, begin == 0 ? loss : part, 1 / share, tape.stream());
    if (begin > 0) ops.Accumulate(part, loss, tape.stream());
    // Otherwise the host would run ahead and hold the logits of several chunks.
    if (OrderedMemoryOf(tape.stream()) == nullptr) FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    begin = interval.end;
  } while (begin < num_rows);
  return loss;
}

// Returns the mean loss of the chunk's own rows. The head's own code runs, on a tape of the chunk, without its hooks,
// which have run for all chunks.
absl::StatusOr<Tensor> LinearCrossEntropyLoss::Chunk(Linear& head, const Rows& chunk, double share,
                                                     const Tensor& grad_x, Tape& tape) {
  Tape of_chunk(tape.stream(), tape.ops(), /*keep_for_backward=*/grad_x.defined());
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, head.DoForward(chunk.x, of_chunk));
  if (!grad_x.defined()) return CrossEntropyLoss().Forward(logits, chunk.targets, of_chunk);
  FSDP_ASSIGN_OR_RETURN(CrossEntropyLoss::LossAndGradient made,
                        ScaledLoss(logits, chunk.targets, tape.loss_scale(), share, of_chunk));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, head.DoBackward(made.grad_logits, of_chunk));
  tape.device().ops().CopyTensors({{grad, grad_x}}, tape.stream());
  return std::move(made.loss);
}

absl::StatusOr<Tensor> LinearCrossEntropyLoss::Backward(Linear& head, Tape& tape) const {
  const auto backward = [&](const TensorList&, Tape& on) -> absl::StatusOr<TensorList> {
    FSDP_ASSIGN_OR_RETURN(const Tensor loss, on.Restore());
    if (!IsLoss(loss)) {
      return absl::FailedPreconditionError(
          "linear cross entropy: backward after another forward than its own: call backward with the gradient of the "
          "logits");
    }
    const std::vector<Parameter*> parameters = ParametersOf(head);
    for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
      FSDP_ASSIGN_OR_RETURN(const Tensor grad, on.Restore());
      if (grad.defined()) FSDP_RETURN_IF_ERROR(AddGrad(grad, **parameter, on));
    }
    FSDP_ASSIGN_OR_RETURN(Tensor grad_x, on.Restore());
    return TensorList{std::move(grad_x), Tensor()};
  };
  FSDP_ASSIGN_OR_RETURN(TensorList grads, CallBackward(head, {Tensor()}, tape, backward));
  return std::move(grads.front());
}

}  // namespace fsdp
