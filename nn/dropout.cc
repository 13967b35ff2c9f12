// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/dropout.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

// The positions of the elements of `x` in the global batch, whose samples follow each other.
absl::StatusOr<DropoutMask> MaskOf(const RandomDraw& draw, float p, const Tensor& x) {
  if (x.numel() % draw.state.samples != 0) {
    return absl::InvalidArgumentError(absl::StrCat("dropout: ", x.shape().ToString(),
                                                   " is no whole number of elements for each of the ",
                                                   draw.state.samples, " samples of the tape's random state"));
  }
  const auto first = static_cast<uint64_t>(draw.state.first_sample) * (x.numel() / draw.state.samples);
  return DropoutMask{.seed = draw.state.seed, .sequence = draw.sequence(), .first = first, .p = p};
}

}  // namespace

absl::StatusOr<Tensor> Dropout::DoForward(const Tensor& x, Tape& tape) {
  if (!(p_ >= 0 && p_ <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout: p is ", p_, ", expected 0 to 1"));
  }
  if (!tape.training() || p_ == 0) return x;
  FSDP_ASSIGN_OR_RETURN(const RandomDraw draw, tape.NextDraw());
  FSDP_ASSIGN_OR_RETURN(const DropoutMask mask, MaskOf(draw, p_, x));
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), x.shape()));
  tape.ops().Dropout(x, mask, out, tape.stream());
  return out;
}

absl::StatusOr<Tensor> Dropout::DoBackward(const Tensor& grad_output, Tape& tape) {
  if (p_ == 0) return grad_output;
  FSDP_ASSIGN_OR_RETURN(const RandomDraw draw, tape.RestoreDraw());
  FSDP_ASSIGN_OR_RETURN(const DropoutMask mask, MaskOf(draw, p_, grad_output));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, tape.Empty(grad_output.dtype(), grad_output.shape()));
  tape.ops().Dropout(grad_output, mask, grad_x, tape.stream());
  return grad_x;
}

}  // namespace fsdp
