// SPDX-License-Identifier: Apache-2.0
//
// StreamHold: stops a CUDA stream on the GPU's side, so that a test sees which work waits for it and which does not.
// Work may be put on the stream meanwhile. Must live until the stream has passed.
#ifndef FSDP_CUDA_STREAM_HOLD_TESTUTIL_H_
#define FSDP_CUDA_STREAM_HOLD_TESTUTIL_H_

#include <semaphore>

#include "fsdp/tensor/stream.h"

namespace fsdp {

class StreamHold {
 public:
  // From here on the work of `stream`, or of each replay of the graph that it captures, waits for a Release, and passes
  // without one after 20 seconds.
  void Stop(Stream& stream);

  void Release() { released_.release(); }

 private:
  std::counting_semaphore<> released_{0};
};

}  // namespace fsdp

#endif  // FSDP_CUDA_STREAM_HOLD_TESTUTIL_H_
