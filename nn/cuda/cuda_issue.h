// SPDX-License-Identifier: Apache-2.0
//
// Kernels as work of a CUDA stream, for cuda_layer_ops.cc.
#ifndef FSDP_NN_CUDA_CUDA_ISSUE_H_
#define FSDP_NN_CUDA_CUDA_ISSUE_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Fails `stream`. An error is not returned, so that it comes after the errors of earlier work (nn/ops/layer_ops.cc).
inline void FailStream(Stream& stream, absl::Status status) {
  stream.Run([status = std::move(status)] { return status; });
}

// Puts `launch(stream)` on `stream`; `kernel` names it in errors.
template <typename F>
void Issue(const char* kernel, std::initializer_list<const Tensor*> operands, Stream& stream, F launch) {
  CudaStream& on = CudaStream::Of(stream);
  // The stream holds the buffers until the work has run: the caller may drop its tensors as soon as Issue returns.
  std::vector<Buffer> uses;
  for (const Tensor* t : operands) uses.push_back(t->buffer());
  on.Issue(std::move(uses), [launch = std::move(launch), kernel, device = on.ordinal()](CUstream_st* s) {
    launch(s);
    return CudaLaunchStatus(kernel, device);
  });
}

// The same with `nbytes` of the stream's workspace: `launch(memory, stream)`.
template <typename F>
void IssueWithWorkspace(const char* kernel, int64_t nbytes, std::initializer_list<const Tensor*> operands,
                        Stream& stream, F launch) {
  CudaStream& on = CudaStream::Of(stream);
  // The workspace belongs to the stream, whose work is ordered, so that consecutive kernels may share it. It is looked
  // up now and not in the closure, because growing it may fail.
  absl::StatusOr<Buffer> workspace = on.Workspace(nbytes);
  if (!workspace.ok()) return FailStream(stream, workspace.status());
  std::vector<Buffer> uses = {*workspace};
  for (const Tensor* t : operands) uses.push_back(t->buffer());
  on.Issue(std::move(uses),
           [launch = std::move(launch), kernel, device = on.ordinal(), memory = workspace->data()](CUstream_st* s) {
             launch(memory, s);
             return CudaLaunchStatus(kernel, device);
           });
}

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_ISSUE_H_
