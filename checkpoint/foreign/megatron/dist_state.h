// SPDX-License-Identifier: Apache-2.0
//
// DistState: the values of a torch_dist checkpoint: which key of .metadata is which parameter or optimizer state, with
// stacked tensors divided into layers and experts. Each tensor of the result is a run of elements of one tensor of
// .metadata, since layers are the first axis. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_DIST_STATE_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_DIST_STATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/megatron/common_values.h"
#include "fsdp/checkpoint/foreign/torch/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

struct DistStateInput {
  std::vector<DcpEntry> entries;
  std::function<const DcpTensor&(int)> tensor;  // by number
  CommonValues common;
  bool model_only = false;     // skip the optimizer's state
  int64_t metadata_bytes = 0;  // of .metadata: bounds the names that are made of its keys
};

// TorchState::path and step are not set. kDataLoss for tensors of a stack that differ in length, for optimizer state
// that does not fit its parameter, and for a name that occurs twice; kResourceExhausted for stacks of more names than
// their chunks explain.
absl::StatusOr<TorchState> MakeDistState(DistStateInput input);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_DIST_STATE_H_
