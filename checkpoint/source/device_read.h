// SPDX-License-Identifier: Apache-2.0
//
// ReadToDevice: TensorSource::ReadAll into memory of a GPU. Two pinned buffers alternate: while one is copied to the
// device, the next pieces are read, verified and converted into the other. Small tensors of a buffer are copied
// together (tensor/packed_copies.h).
//
//   threads  |= read into A =|= read into B =|= read into A =|
//   GPU                      |- copy A -|    |- copy B -|
#ifndef FSDP_CHECKPOINT_SOURCE_DEVICE_READ_H_
#define FSDP_CHECKPOINT_SOURCE_DEVICE_READ_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// A read whose `out` is the beginning of `memory`, of the GPU or of the host.
struct DeviceRead {
  TensorRead read;
  Buffer memory;
};

// Like source.ReadAll for reads to memory of `device` or of the host. Blocks until all elements are in place.
// `buffer_bytes`: the size of each pinned buffer; at least one element.
absl::Status ReadToDevice(const TensorSource& source, const std::vector<DeviceRead>& reads, Device& device,
                          ThreadPool& pool, int64_t buffer_bytes = int64_t{64} << 20);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_DEVICE_READ_H_
