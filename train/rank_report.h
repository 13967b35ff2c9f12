// SPDX-License-Identifier: Apache-2.0
//
// RankReport: the few numbers that every rank needs of all others at the end of a step, gathered by one small
// collective that runs in stream order after the step's gradients, so that the host waits once for everything.
#ifndef FSDP_TRAIN_RANK_REPORT_H_
#define FSDP_TRAIN_RANK_REPORT_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct RankReport {
  // The mean over the rank's micro-steps.
  double loss = 0;

  // 1 if a signal asked the rank to stop, else 0.
  double stop_requested = 0;

  // The most memory that was allocated on the rank's device so far. All fields are float64, so that one tensor holds
  // them; bytes are exact up to 2^53.
  double peak_bytes = 0;
};

// Gathers reports through one tensor that is allocated once, with the host in stream order (Gather), or without it, so
// that the work can be captured in a graph. Used by one thread.
class RankReports {
 public:
  // `group` is owned by the caller and must outlive it.
  static absl::StatusOr<std::unique_ptr<RankReports>> Create(ProcessGroup& group);

  // Puts two things on `stream`: a call of `mine` on the host, after all earlier work of the stream, and the gathering
  // of its result. Does not block. Collective.
  void Gather(std::function<RankReport()> mine, Stream& stream);

  // The same in three parts, each once a step and in this order, but AddLoss once a micro-step:
  //   SetKnown        the fields that the host knows, which the other two read when they run, as in a replay
  //   AddLoss         puts the loss of micro-step `micro_step`, from 0 of `micro_steps`, on the stream: one float32 on
  //                   the device. The report has the mean
  //   GatherOnDevice  puts the gathering on the stream. Collective
  void SetKnown(bool stop_requested, int64_t peak_bytes);
  void AddLoss(const Tensor& loss, int micro_step, int micro_steps, Stream& stream);
  void GatherOnDevice(Stream& stream);

  // The reports of the last Gather, by rank. Precondition: the stream has been synchronised since.
  std::vector<RankReport> Read() const;

 private:
  RankReports(ProcessGroup& group, Tensor staging, Tensor gathered, Tensor term);

  Tensor OwnRow(const Tensor& rows) const;
  void GatherRows(Stream& stream);  // with this rank's on the device

  ProcessGroup& group_;
  const Tensor staging_;   // float64 [world_size, 3], host
  const Tensor gathered_;  // float64 [world_size, 3], device
  const Tensor term_;      // float64 [1], device: of a micro-step, to be added to the loss
};

// The mean of the losses, summed in the order of the ranks, so that all ranks have the same bits. kFailedPrecondition,
// naming step, rank and value, when a loss is not finite.
absl::StatusOr<double> MeanLoss(const std::vector<RankReport>& reports, int64_t step);

}  // namespace fsdp

#endif  // FSDP_TRAIN_RANK_REPORT_H_
