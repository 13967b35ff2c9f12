// SPDX-License-Identifier: Apache-2.0
//
// All-gathers and reduce-scatters get a high priority: otherwise a busy GPU would schedule them, which the next unit
// waits for, behind other compute. All-reduces over replicas do not get one, as in PyTorch's fully_shard.
#include "fsdp/fsdp/units/unit_streams.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/stream_priority.h"

namespace fsdp {

absl::StatusOr<std::shared_ptr<UnitStreams>> UnitStreams::Create(Device& device) {
  auto streams = std::make_shared<UnitStreams>();
  FSDP_ASSIGN_OR_RETURN(streams->compute, device.CreateStream("compute"));
  FSDP_ASSIGN_OR_RETURN(streams->unshard, CreateUrgentStream(device, "unshard"));
  FSDP_ASSIGN_OR_RETURN(streams->post_backward, CreateUrgentStream(device, "post_backward"));
  FSDP_ASSIGN_OR_RETURN(streams->all_reduce, device.CreateStream("all_reduce"));
  return streams;
}

absl::Status UnitStreams::Synchronize() {
  absl::Status first = compute->Synchronize();
  first.Update(unshard->Synchronize());
  first.Update(post_backward->Synchronize());
  first.Update(all_reduce->Synchronize());
  return first;
}

}  // namespace fsdp
