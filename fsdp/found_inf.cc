// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/found_inf.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

absl::StatusOr<std::unique_ptr<FoundInf>> FoundInf::Create(ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(Tensor flag, Tensor::Empty(*group.device(), DType::kFloat32, {1}));
  return std::unique_ptr<FoundInf>(new FoundInf(group, std::move(flag)));
}

void FoundInf::Begin(Stream& stream) { stream.device().ops().Zero(flag_, stream); }

void FoundInf::Check(const Tensor& t, Stream& stream) { stream.device().ops().CheckFinite({t}, flag_, stream); }

// The norm covers all ranks' gradients, but a loss may be infinite although its gradient is finite.
void FoundInf::CheckOnAllRanks(const Tensor& t, Stream& stream) {
  Check(t, stream);
  if (group_.size() > 1) group_.AllReduce(flag_, ReduceOp::kSum, stream);
}

}  // namespace fsdp
