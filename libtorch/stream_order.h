// SPDX-License-Identifier: Apache-2.0
//
// Orders a stream of this project with LibTorch's current stream of the same device. On a GPU they are ordered by
// events, and the host continues. On the host LibTorch has no streams: it computes immediately, on the calling thread.
#ifndef FSDP_LIBTORCH_STREAM_ORDER_H_
#define FSDP_LIBTORCH_STREAM_ORDER_H_

#include <c10/core/Device.h>

#include <vector>

#include "absl/status/status.h"
#include "fsdp/tensor/stream.h"

// CUDA's, so that its headers need not be included here.
struct CUstream_st;

namespace fsdp {

// Work put on `ours` from now on comes after all work that LibTorch has put on the calling thread's current stream.
absl::Status AfterLibTorch(Stream& ours, c10::Device device);

// Blocks until LibTorch has done all work that it has put on the calling thread's current stream of `device`.
absl::Status AwaitLibTorch(c10::Device device);

// TorchStreams: orders both ways when LibTorch computes on several streams: a program may change the current one within
// a forward, and autograd makes the forward's stream the current one again. Not thread-safe.
class TorchStreams final {
 public:
  // `ours` must outlive it.
  TorchStreams(Stream& ours, c10::Device device) : ours_(&ours), device_(device) {}

  // Adds the calling thread's current stream. If it is new, does LibTorchAfter for it.
  absl::Status Join();

  // LibTorch's work from now on, on the current stream and on all that joined since Clear, comes after everything put
  // on `ours` so far. Returns the first error of `ours`; on a GPU, of the work issued so far.
  absl::Status LibTorchAfter();
  // Work put on `ours` from now on comes after all work that LibTorch has put on those streams.
  absl::Status AfterLibTorch();
  void Clear() { joined_.clear(); }

 private:
  Stream* ours_;
  c10::Device device_;
  std::vector<CUstream_st*> joined_;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_STREAM_ORDER_H_
