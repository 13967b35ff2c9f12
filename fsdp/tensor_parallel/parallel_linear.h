// SPDX-License-Identifier: Apache-2.0
//
// Linear layers that the ranks of a group compute together, each with a part of the weight: tensor parallelism as in
// Megatron, and in PyTorch's ColwiseParallel and RowwiseParallel. In pairs, they need one all-reduce in forward and one
// in backward:
//
//   x, whole --Column [out / T, in]--> y, the rank's features --Row [out, in / T]--> all-reduce --> z, whole
//
// Together with FSDP, on a mesh {"dp", "tp"}: the layers take the group of "tp", and Wrap or FullyShard the submesh
// "dp". Names are as in Linear, and state dicts and checkpoints have whole weights, so that a checkpoint of one mesh is
// read on any other, and by a model that is not parallel.
//
//   FSDP_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create(group, {2, 2}, {"dp", "tp"}));
//   FSDP_ASSIGN_OR_RETURN(auto tp, mesh->group("tp"));
//   FSDP_ASSIGN_OR_RETURN(auto up, ColumnParallelLinear::Create(768, 3072, initializer, tp));
//   FSDP_ASSIGN_OR_RETURN(auto down, RowParallelLinear::Create(3072, 768, initializer, tp));
//   ...
//   FSDP_ASSIGN_OR_RETURN(auto dp, mesh->Submesh({"dp"}));
//   FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), dp, options));
//
// Ranks of the group must be given the same inputs: the same batch, and the same random numbers. A ShardedGradScaler
// takes the group of the whole mesh, so that all ranks skip the same steps. sync_module_states copies values only over
// the ranks of FSDP: without it, or with it, ranks of the group begin with equal copies if they have one init_seed.
#ifndef FSDP_FSDP_TENSOR_PARALLEL_PARALLEL_LINEAR_H_
#define FSDP_FSDP_TENSOR_PARALLEL_PARALLEL_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/nn/linear.h"

namespace fsdp {

// y = x weight^T + bias for the rank's own output features, out_features / ranks of them. Input [..., in_features], the
// same on all ranks; output [..., out_features / ranks]. Weight [out_features, in_features] and bias [out_features] are
// cut along dimension 0. Backward sums the gradient of the input over the ranks: collective.
class ColumnParallelLinear final : public Linear {
 public:
  // `initializer` is for the whole weight, whose values do not depend on the number of ranks; the bias starts at 0.
  // kInvalidArgument if the ranks do not divide out_features. Local.
  static absl::StatusOr<std::unique_ptr<ColumnParallelLinear>> Create(int64_t in_features, int64_t out_features,
                                                                      const Initializer& initializer,
                                                                      std::shared_ptr<ProcessGroup> group,
                                                                      bool bias = false);

  std::string_view type_name() const override { return "ColumnParallelLinear"; }

 private:
  ColumnParallelLinear(int64_t in_features, int64_t out_features, const Initializer& initializer,
                       std::shared_ptr<ProcessGroup> group, bool bias);
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  const std::shared_ptr<ProcessGroup> group_;
};

// z = y weight^T + bias from the rank's own input features, in_features / ranks of them, summed over the ranks in their
// order. Input [..., in_features / ranks]; output [..., out_features], the same on all ranks. Weight [out_features,
// in_features] is cut along dimension 1; the bias [out_features] is a copy on every rank, and is added once. Forward
// sums the output over the ranks: collective.
class RowParallelLinear final : public Linear {
 public:
  // As ColumnParallelLinear::Create; the ranks must divide in_features.
  static absl::StatusOr<std::unique_ptr<RowParallelLinear>> Create(int64_t in_features, int64_t out_features,
                                                                   const Initializer& initializer,
                                                                   std::shared_ptr<ProcessGroup> group,
                                                                   bool bias = false);

  std::string_view type_name() const override { return "RowParallelLinear"; }

 private:
  RowParallelLinear(int64_t in_features, int64_t out_features, const Initializer& initializer,
                    std::shared_ptr<ProcessGroup> group, bool bias);
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;

  const std::shared_ptr<ProcessGroup> group_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_TENSOR_PARALLEL_PARALLEL_LINEAR_H_
