// SPDX-License-Identifier: Apache-2.0
//
// Each layer is Linear on a part of the weight, and one all-reduce:
//
//              forward                          backward
//   Column     y_t = x W_t^T + b_t              grad_x = sum over ranks of grad_y_t W_t
//   Row        z = sum over ranks of y_t W_t^T  grad_y_t = grad_z W_t
//
// The tensors without a sum, x and grad_z, are the same on all ranks. The all-reduce is on the tape's stream, so it is
// in order with the layer's kernels without an event. Rank 0 of the group adds the bias of Row to its product, so the
// sum has it once, and its gradient is computed alike on every rank.
#include "fsdp/fsdp/tensor_parallel/parallel_linear.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::Status CheckDivides(std::string_view layer, std::string_view what, int64_t features, const ProcessGroup* group) {
  if (group == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(layer), ": the process group is null: expected the one of tensor parallelism"));
  }
  if (features > 0 && features % group->size() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(layer), ": ", std::string(what), "=", features,
                                                 ": expected a multiple of the group's ", group->size(), " ranks"));
}

// Records that `parameter` is part `group.rank()` of `group.size()` along `dim`.
void Cut(int dim, const ProcessGroup& group, Parameter& parameter) {
  std::vector<int64_t> whole(parameter.shape.dims().begin(), parameter.shape.dims().end());
  const int64_t size = whole[dim];
  whole[dim] *= group.size();
  parameter.part = ParameterPart{*Shape::Create(whole), dim, group.rank() * size};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ColumnParallelLinear>> ColumnParallelLinear::Create(int64_t in_features,
                                                                                   int64_t out_features,
                                                                                   const Initializer& initializer,
                                                                                   std::shared_ptr<ProcessGroup> group,
                                                                                   bool bias) {
  FSDP_RETURN_IF_ERROR(CheckDivides("ColumnParallelLinear", "out_features", out_features, group.get()));
  return std::unique_ptr<ColumnParallelLinear>(
      new ColumnParallelLinear(in_features, out_features, initializer, std::move(group), bias));
}

ColumnParallelLinear::ColumnParallelLinear(int64_t in_features, int64_t out_features, const Initializer& initializer,
                                           std::shared_ptr<ProcessGroup> group, bool bias)
    : Linear(in_features, out_features / group->size(), initializer, bias), group_(std::move(group)) {
  Cut(0, *group_, *weight_);
  if (bias_ != nullptr) Cut(0, *group_, *bias_);
}

absl::StatusOr<Tensor> ColumnParallelLinear::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, Linear::DoBackward(grad_output, tape));
  if (group_->size() > 1) group_->AllReduce(grad_x, ReduceOp::kSum, tape.stream());
  return grad_x;
}

absl::StatusOr<std::unique_ptr<RowParallelLinear>> RowParallelLinear::Create(int64_t in_features, int64_t out_features,
                                                                             const Initializer& initializer,
                                                                             std::shared_ptr<ProcessGroup> group,
                                                                             bool bias) {
  FSDP_RETURN_IF_ERROR(CheckDivides("RowParallelLinear", "in_features", in_features, group.get()));
  return std::unique_ptr<RowParallelLinear>(
      new RowParallelLinear(in_features, out_features, initializer, std::move(group), bias));
}

RowParallelLinear::RowParallelLinear(int64_t in_features, int64_t out_features, const Initializer& initializer,
                                     std::shared_ptr<ProcessGroup> group, bool bias)
    : Linear(in_features / group->size(), out_features, initializer, bias), group_(std::move(group)) {
  Cut(1, *group_, *weight_);
  adds_bias_ = group_->rank() == 0;
}

absl::StatusOr<Tensor> RowParallelLinear::DoForward(const Tensor& x, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor out, Linear::DoForward(x, tape));
  if (group_->size() > 1) group_->AllReduce(out, ReduceOp::kSum, tape.stream());
  return out;
}

}  // namespace fsdp
