// SPDX-License-Identifier: Apache-2.0
//
// CudaGraph: a WorkGraph of the CUDA device. Capture, with the streams that take part:
//
//   origin      begin  kernel  record ----.  kernel   wait  (join all)  end
//   other                       wait, kernel, record --'
//
// An `other` is drained before it takes part, and is always joined at the end, so that CUDA never sees a dependency on
// uncaptured work, nor unfinished work. The streams (cuda_stream.h) detect work that cannot be captured before CUDA
// would.
#ifndef FSDP_CUDA_CUDA_GRAPH_H_
#define FSDP_CUDA_CUDA_GRAPH_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/cuda/cuda_memory.h"
#include "fsdp/cuda/cuda_recording.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/tensor/work_graph.h"

// CUDA's, so that its headers need not be included here.
struct CUgraphExec_st;

namespace fsdp {

class CudaGraph final : public WorkGraph {
 public:
  // Same contract as CaptureWork; `memory` is the device's. Blocks until the earlier work of `origin` is done.
  // kFailedPrecondition if another capture on the device is under way.
  static absl::StatusOr<std::unique_ptr<WorkGraph>> Capture(CudaMemory& memory, CudaStream& origin,
                                                            const std::function<absl::Status()>& work);
  // Blocks until the last replay is done; the memory and the streams may be destroyed afterwards.
  ~CudaGraph() override;

  // Does not block. Errors of the launch become errors of the origin stream.
  void Replay() override;

 private:
  CudaGraph(std::shared_ptr<CudaRecording> recording, CUgraphExec_st* exec)
      : recording_(std::move(recording)), exec_(exec) {}

  CudaStream& origin() const { return *recording_->streams()[0]; }

  const std::shared_ptr<CudaRecording> recording_;
  CUgraphExec_st* const exec_;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_GRAPH_H_
