// SPDX-License-Identifier: Apache-2.0
//
// Reports travel as float64 [world_size, 3] through one all-gather of 24 bytes a rank:
//
//   host    staging_, own row    <- the rank's report, by a host function in stream order
//   device  gathered_, own row   <- copy        then all-gather in place
//   host    staging_, all rows   <- copy of gathered_
//
// float64 represents a loss, a flag and a number of bytes (exact up to 2^53).
#include "fsdp/train/rank_report.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"

namespace fsdp {
namespace {

constexpr int64_t kFields = 3;
// A report is copied as it is: no padding, and kFields doubles.
static_assert(sizeof(RankReport) == kFields * sizeof(double));

}  // namespace

RankReports::RankReports(ProcessGroup& group, Tensor staging, Tensor gathered)
    : group_(group), staging_(std::move(staging)), gathered_(std::move(gathered)) {}

absl::StatusOr<std::unique_ptr<RankReports>> RankReports::Create(ProcessGroup& group) {
  Device& device = *group.device();
  const Shape shape = {group.size() * kFields};
  FSDP_ASSIGN_OR_RETURN(Buffer pinned, device.AllocatePinned(shape.numel() * SizeOf(DType::kFloat64)));
  FSDP_ASSIGN_OR_RETURN(Tensor gathered, Tensor::Empty(device, DType::kFloat64, shape));
  Tensor staging(std::move(pinned), DType::kFloat64, shape);
  return std::unique_ptr<RankReports>(new RankReports(group, std::move(staging), std::move(gathered)));
}

void RankReports::Gather(std::function<RankReport()> mine, Stream& stream) {
  const int64_t rank = group_.rank();
  const Interval slot = {rank * kFields, (rank + 1) * kFields};
  const Tensor own = gathered_.Slice(slot);
  const Tensor own_staging = staging_.Slice(slot);
  // In stream order, so that `mine` sees the losses of all micro-steps.
  stream.Run([mine = std::move(mine), own_staging] {
    const RankReport report = mine();
    std::memcpy(own_staging.data(), &report, sizeof(report));
    return absl::OkStatus();
  });
  stream.CopyAsync(own.data(), own_staging.data(), own.nbytes());
  group_.AllGather(own, gathered_, stream);
  stream.CopyAsync(staging_.data(), gathered_.data(), gathered_.nbytes());
}

std::vector<RankReport> RankReports::Read() const {
  std::vector<RankReport> reports(group_.size());
  std::memcpy(reports.data(), staging_.data(), staging_.nbytes());
  return reports;
}

absl::StatusOr<double> MeanLoss(const std::vector<RankReport>& reports, int64_t step) {
  double sum = 0;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const double loss = reports[rank].loss;
    if (!std::isfinite(loss)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("step %d: the loss of rank %d is %g, expected a finite number; the optimizer did not step",
                          step, rank, std::isnan(loss) ? std::abs(loss) : loss));  // the sign of a NaN is meaningless
    }
    sum += loss;
  }
  return sum / static_cast<double>(reports.size());
}

}  // namespace fsdp
