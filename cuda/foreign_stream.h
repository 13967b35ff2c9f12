// SPDX-License-Identifier: Apache-2.0
//
// Order between our streams and a CUDA stream that another library of the process owns, by events: neither function
// waits for the GPU. This header exists in every build; without CUDA both return kUnimplemented.
#ifndef FSDP_CUDA_FOREIGN_STREAM_H_
#define FSDP_CUDA_FOREIGN_STREAM_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/tensor/stream.h"

// CUDA's, so that its headers need not be included here.
struct CUstream_st;

namespace fsdp {

// An event that is reached after all work that is on `stream`, of GPU `ordinal`, so far. Makes that GPU the calling
// thread's current one. Same errors as CudaStatus.
absl::StatusOr<Event> RecordForeign(CUstream_st* stream, int ordinal);

// Later work on `stream`, of GPU `ordinal`, waits for `event`. Blocks until the event is recorded, which is immediate
// unless host work precedes it on its stream; for an event of a device that is not a GPU, until it is reached. Returns
// the error of the event's stream up to it.
absl::Status MakeForeignWait(CUstream_st* stream, int ordinal, const Event& event);

}  // namespace fsdp

#endif  // FSDP_CUDA_FOREIGN_STREAM_H_
