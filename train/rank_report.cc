// SPDX-License-Identifier: Apache-2.0
//
// Reports travel as float64 [world_size, 3] through one all-gather of 24 bytes a rank:
//
//   host    staging_, own row    <- the rank's report, by a host function in stream order
//   device  gathered_, own row   <- copy        then all-gather in place
//   host    staging_, all rows   <- copy of gathered_
//
// Without the host function the device adds the losses itself, in the host's order and dtype, and only the fields that
// the host knows before are copied:
//
//   host    staging_, own row    <- all but the loss, before the work is issued or replayed
//   device  gathered_, own row   <- loss 0 / n + loss 1 / n + ...; the other fields: copy
//
// float64 represents a loss, a flag and a number of bytes (exact up to 2^53).
#include "fsdp/train/rank_report.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// The fields of a report, in order.
constexpr int64_t kLoss = 0, kStopRequested = 1, kPeakBytes = 2, kFields = 3;
// A report is copied as it is: no padding, and kFields doubles.
static_assert(sizeof(RankReport) == kFields * sizeof(double));
static_assert(offsetof(RankReport, stop_requested) == kStopRequested * sizeof(double));
static_assert(offsetof(RankReport, peak_bytes) == kPeakBytes * sizeof(double));

}  // namespace

RankReports::RankReports(ProcessGroup& group, Tensor staging, Tensor gathered, Tensor term)
    : group_(group), staging_(std::move(staging)), gathered_(std::move(gathered)), term_(std::move(term)) {}

absl::StatusOr<std::unique_ptr<RankReports>> RankReports::Create(ProcessGroup& group) {
  Device& device = *group.device();
  const Shape shape = {group.size() * kFields};
  FSDP_ASSIGN_OR_RETURN(Buffer pinned, device.AllocatePinned(shape.numel() * SizeOf(DType::kFloat64)));
  FSDP_ASSIGN_OR_RETURN(Tensor gathered, Tensor::Empty(device, DType::kFloat64, shape));
  FSDP_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(device, DType::kFloat64, {1}));
  Tensor staging(std::move(pinned), DType::kFloat64, shape);
  return std::unique_ptr<RankReports>(new RankReports(group, std::move(staging), std::move(gathered), std::move(term)));
}

Tensor RankReports::OwnRow(const Tensor& rows) const {
  const int64_t rank = group_.rank();
  return rows.Slice({rank * kFields, (rank + 1) * kFields});
}

void RankReports::Gather(std::function<RankReport()> mine, Stream& stream) {
  const Tensor own = OwnRow(gathered_), own_staging = OwnRow(staging_);
  // In stream order, so that `mine` sees the losses of all micro-steps.
  stream.Run([mine = std::move(mine), own_staging] {
    const RankReport report = mine();
    std::memcpy(own_staging.data(), &report, sizeof(report));
    return absl::OkStatus();
  });
  stream.CopyAsync(own.data(), own_staging.data(), own.nbytes());
  GatherRows(stream);
}

void RankReports::SetKnown(bool stop_requested, int64_t peak_bytes) {
  auto* const fields = OwnRow(staging_).data_as<double>();
  fields[kStopRequested] = stop_requested ? 1 : 0;
  fields[kPeakBytes] = static_cast<double>(peak_bytes);
}

void RankReports::AddLoss(const Tensor& loss, int micro_step, int micro_steps, Stream& stream) {
  const TensorOps& ops = stream.device().ops();
  const Tensor sum = OwnRow(gathered_).Slice({kLoss, kLoss + 1});
  ops.CastDivide(loss, micro_step == 0 ? sum : term_, micro_steps, stream);
  if (micro_step > 0) ops.Accumulate(term_, sum, stream);
}

void RankReports::GatherOnDevice(Stream& stream) {
  const Interval known = {kStopRequested, kFields};
  const Tensor to = OwnRow(gathered_).Slice(known), from = OwnRow(staging_).Slice(known);
  stream.CopyAsync(to.data(), from.data(), to.nbytes());
  GatherRows(stream);
}

void RankReports::GatherRows(Stream& stream) {
  group_.AllGather(OwnRow(gathered_), gathered_, stream);
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
