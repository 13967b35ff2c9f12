// SPDX-License-Identifier: Apache-2.0
//
// GpuTimer: the time between two points of a CUDA stream's work, as the GPU sees it, so that neither the host's
// launches nor its waits are part of it. Not thread-safe. Errors of CUDA become errors of the stream.
#ifndef FSDP_OPTIM_BENCHMARK_GPU_TIMER_H_
#define FSDP_OPTIM_BENCHMARK_GPU_TIMER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

class GpuTimer {
 public:
  // On `stream`, of a CUDA device, which must outlive the timer.
  static absl::StatusOr<std::unique_ptr<GpuTimer>> Create(Stream& stream);
  ~GpuTimer();

  // Work that is put on the stream between the two calls is timed.
  void Begin();
  void End();

  // Waits for the stream; the seconds between the last Begin and End.
  absl::StatusOr<double> Seconds();

 private:
  struct Events;
  GpuTimer(Stream& stream, std::unique_ptr<Events> events);

  Stream& stream_;
  const std::unique_ptr<Events> events_;
};

}  // namespace fsdp

#endif  // FSDP_OPTIM_BENCHMARK_GPU_TIMER_H_
