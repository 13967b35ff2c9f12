// SPDX-License-Identifier: Apache-2.0
//
// Tape: one forward pass and its backward. It says where the work goes (stream, device, kernels) and keeps what
// backward will need. Saved tensors are a stack: a module's Backward restores in reverse what its Forward saved, so
// several forwards may be open at once, each on its own tape. Not thread-safe. Saved tensors hold their memory until
// they are restored or the tape is destroyed.
#ifndef FSDP_NN_TAPE_H_
#define FSDP_NN_TAPE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class Tape {
 public:
  // `stream` and `ops` must outlive the tape. With `keep_for_backward` off (evaluation) nothing is saved.
  Tape(Stream& stream, const LayerOps& ops, bool keep_for_backward = true);

  Stream& stream() const { return stream_; }
  Device& device() const { return stream_.device(); }
  // The kernels of the stream's device.
  const LayerOps& ops() const { return ops_; }
  bool keep_for_backward() const { return keep_for_backward_; }

  // New memory on the device, contents unspecified. The caller may run ahead of the stream, whose finished work gives
  // its memory back, by 64 MiB of such memory; beyond that, this call waits for the stream, and returns the stream's
  // error if it has one. kResourceExhausted when the device has no room.
  absl::StatusOr<Tensor> Empty(DType dtype, Shape shape);

  // Pushes `t` on the stack of saved tensors; nothing where keep_for_backward() is false. O(1); the bytes are shared,
  // not copied.
  void Save(Tensor t);

  // The tensor saved last; kFailedPrecondition when there is none: Backward without its Forward, or twice.
  absl::StatusOr<Tensor> Restore();

 private:
  Stream& stream_;
  const LayerOps& ops_;
  bool keep_for_backward_;
  std::vector<Tensor> saved_;
  // The bound on how far the host runs ahead; tape.cc explains it.
  int64_t bytes_since_mark_ = 0;
  Event mark_;  // in the stream, some time ago
};

}  // namespace fsdp

#endif  // FSDP_NN_TAPE_H_
