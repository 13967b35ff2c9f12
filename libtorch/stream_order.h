// SPDX-License-Identifier: Apache-2.0
//
// Order between a stream of ours and LibTorch's current stream of the same device. On a GPU they meet by events, and
// the host goes on. On the host LibTorch has no streams: it computes at once, on the calling thread.
#ifndef FSDP_LIBTORCH_STREAM_ORDER_H_
#define FSDP_LIBTORCH_STREAM_ORDER_H_

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// What LibTorch does from now on, on the calling thread's current stream, comes after all that was put on `ours` so
// far. Returns the first error of `ours`; on a GPU, of what was issued.
absl::Status LibTorchAfter(Stream& ours, c10::Device device);

// What is put on `ours` from now on comes after all that LibTorch has put on the calling thread's current stream.
absl::Status AfterLibTorch(Stream& ours, c10::Device device);

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_STREAM_ORDER_H_
