// SPDX-License-Identifier: Apache-2.0
#include "fsdp/cuda/foreign_stream.h"

#include <memory>

#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_event.h"

namespace fsdp {

absl::StatusOr<Event> RecordForeign(CUstream_st* stream, int ordinal) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<CudaEvent> event, CudaEvent::Create(ordinal));
  event->RecordOn(stream, absl::OkStatus(), {}, nullptr);
  return Event(std::move(event));
}

absl::Status MakeForeignWait(CUstream_st* stream, int ordinal, const Event& event) {
  auto* const of_gpu = dynamic_cast<CudaEvent*>(event.state().get());
  return of_gpu != nullptr ? of_gpu->MakeWait(stream, ordinal) : event.Synchronize();
}

}  // namespace fsdp
