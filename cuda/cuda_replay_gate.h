// SPDX-License-Identifier: Apache-2.0
//
// CudaReplayGate: the CUDA device's ReplayGate. The captured wait is for one CUDA event, whatever event the gate is
// closed until: a stream of the gate waits for that one and then records the gate's.
#ifndef FSDP_CUDA_CUDA_REPLAY_GATE_H_
#define FSDP_CUDA_CUDA_REPLAY_GATE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/work_graph.h"

// CUDA's, so that its headers need not be included here.
struct CUevent_st;

namespace fsdp {

class CudaReplayGate final : public ReplayGate {
 public:
  // For streams of `device`, GPU `ordinal`.
  static absl::StatusOr<std::unique_ptr<ReplayGate>> Create(Device& device, int ordinal);
  ~CudaReplayGate() override;

  void CloseUntil(const Event& event) override;
  void Pass(Stream& stream) override;

 private:
  // Lets no replay be launched before the gate's event has been recorded for the last CloseUntil.
  class Opening;

  CudaReplayGate(std::shared_ptr<CUevent_st> event, std::unique_ptr<Stream> stream, int ordinal);

  const std::shared_ptr<CUevent_st> event_;  // shared with the graphs that wait for it
  const std::shared_ptr<Opening> opening_;   // likewise
  const std::unique_ptr<Stream> stream_;
  const int ordinal_;
};

}  // namespace fsdp

#endif  // FSDP_CUDA_CUDA_REPLAY_GATE_H_
