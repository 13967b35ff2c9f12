// SPDX-License-Identifier: Apache-2.0
//
// Order between a stream of ours and LibTorch's current stream of the same device. On a GPU they meet by events, and
// the host goes on. On the host LibTorch has no streams: it computes at once, on the calling thread.
#ifndef FSDP_LIBTORCH_STREAM_ORDER_H_
#define FSDP_LIBTORCH_STREAM_ORDER_H_

#include <c10/core/Device.h>

#include <vector>

#include "absl/status/status.h"
#include "fsdp/tensor/stream.h"

// CUDA's, so that its headers need not be included here.
struct CUstream_st;

namespace fsdp {

// What is put on `ours` from now on comes after all that LibTorch has put on the calling thread's current stream.
absl::Status AfterLibTorch(Stream& ours, c10::Device device);

// Blocks until LibTorch has done all that it has put on the calling thread's current stream of `device`.
absl::Status AwaitLibTorch(c10::Device device);

// TorchStreams: order both ways where LibTorch may compute on several streams: a program may change the current one
// within a forward, and autograd makes that of the forward the current one again. Not thread-safe.
class TorchStreams final {
 public:
  // `ours` must outlive it.
  TorchStreams(Stream& ours, c10::Device device) : ours_(&ours), device_(device) {}

  // The calling thread's current stream is one of them from now on. If it was not, then LibTorchAfter, of it alone.
  absl::Status Join();

  // What LibTorch does from now on, on the current stream and on all that joined since Clear, comes after all that was
  // put on `ours` so far. Returns the first error of `ours`; on a GPU, of what was issued.
  absl::Status LibTorchAfter();
  // What is put on `ours` from now on comes after all that LibTorch has put on those streams.
  absl::Status AfterLibTorch();
  void Clear() { joined_.clear(); }

 private:
  Stream* ours_;
  c10::Device device_;
  std::vector<CUstream_st*> joined_;
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_STREAM_ORDER_H_
