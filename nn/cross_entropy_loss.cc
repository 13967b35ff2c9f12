// SPDX-License-Identifier: Apache-2.0
//
// With p = softmax(logits[n, :]) and t = targets[n], over N rows:
//
//   loss = mean over n of -log p[t]               = mean over n of log(sum(e^(x - m))) - (x[t] - m), m the row's
//   maximum d (scale * loss) / d logits[n, v] = scale / N * (p[v] - [v == t])
//
// The second form of the loss never takes the logarithm of a rounded probability. Forward keeps m and 1 / sum of each
// row, so that backward needs one pass over the logits instead of two. The logits are the largest activation of a
// language model (tokens times vocabulary), so backward writes their gradient into their own memory.
#include "fsdp/nn/cross_entropy_loss.h"

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::Status CheckOperands(const Tensor& logits, const Tensor& targets) {
  if (logits.shape().rank() == 2 && targets.dtype() == DType::kInt32 && targets.numel() == logits.shape().dim(0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cross entropy: logits ", logits.shape().ToString(), " and targets ", std::string(DTypeName(targets.dtype())),
      " ", targets.shape().ToString(), " are not [N, V] and int32 with N elements"));
}

absl::Status CheckScale(const DeviceScale& scale) {
  const Tensor& t = scale.scale;
  if (t.defined() && t.dtype() == DType::kFloat32 && t.numel() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cross entropy: the scale is ",
      t.defined() ? absl::StrCat(std::string(DTypeName(t.dtype())), " ", t.shape().ToString()) : "undefined",
      ", expected one float32"));
}

}  // namespace

absl::StatusOr<Tensor> CrossEntropyLoss::Forward(const Tensor& logits, const Tensor& targets, Tape& tape) const {
  FSDP_RETURN_IF_ERROR(CheckOperands(logits, targets));
  FSDP_ASSIGN_OR_RETURN(Tensor loss, tape.Empty(DType::kFloat32, {1}));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Empty(DType::kFloat32, {logits.shape().dim(0), 2}));
  tape.ops().CrossEntropy(logits, targets, loss, statistics, tape.stream());
  tape.Save(logits);
  tape.Save(targets);
  tape.Save(statistics);
  return loss;
}

// Restores in the reverse order of Forward's saves. The kernel may overwrite the logits it reads, because each element
// of the gradient depends only on the logit at the same position and on the row's statistics.
absl::StatusOr<Tensor> CrossEntropyLoss::Backward(float scale, Tape& tape) const {
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor targets, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(Tensor logits, tape.Restore());
  tape.ops().CrossEntropyBackward(logits, targets, statistics, scale, logits, tape.stream());
  return logits;
}

absl::StatusOr<CrossEntropyLoss::LossAndGradient> CrossEntropyLoss::ForwardBackward(const Tensor& logits,
                                                                                    const Tensor& targets, float scale,
                                                                                    Tape& tape) const {
  FSDP_RETURN_IF_ERROR(CheckOperands(logits, targets));
  FSDP_ASSIGN_OR_RETURN(Tensor loss, tape.Empty(DType::kFloat32, {1}));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Empty(DType::kFloat32, {logits.shape().dim(0), 2}));
  tape.ops().CrossEntropyWithGradient(logits, targets, scale, loss, statistics, tape.stream());
  return LossAndGradient{loss, logits};
}

absl::StatusOr<CrossEntropyLoss::LossAndGradient> CrossEntropyLoss::ForwardBackward(const Tensor& logits,
                                                                                    const Tensor& targets,
                                                                                    const DeviceScale& scale,
                                                                                    Tape& tape) const {
  FSDP_RETURN_IF_ERROR(CheckOperands(logits, targets));
  FSDP_RETURN_IF_ERROR(CheckScale(scale));
  const auto* const ops = dynamic_cast<const DeviceScaledLoss*>(&tape.ops());
  if (ops == nullptr) {
    return absl::UnimplementedError(absl::StrCat("cross entropy: no kernel for a scale in the memory of ",
                                                 tape.device().name(), ": pass the scale as a number"));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor loss, tape.Empty(DType::kFloat32, {1}));
  FSDP_ASSIGN_OR_RETURN(Tensor statistics, tape.Empty(DType::kFloat32, {logits.shape().dim(0), 2}));
  ops->CrossEntropyWithScaledGradient(logits, targets, scale, loss, statistics, tape.stream());
  return LossAndGradient{loss, logits};
}

}  // namespace fsdp
