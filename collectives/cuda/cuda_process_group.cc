// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/cuda_process_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/split_members.h"
#include "cuda/cuda_stream.h"
#include "tensor/ops.h"

namespace fsdp {

CudaProcessGroup::CudaProcessGroup(std::unique_ptr<ProcessGroup> control,
                                   std::shared_ptr<CudaCommunicator> communicator, std::shared_ptr<Device> device,
                                   absl::Duration timeout)
    : control_(std::move(control)),
      communicator_(std::move(communicator)),
      device_(std::move(device)),
      timeout_(timeout) {}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CudaProcessGroup::Create(std::unique_ptr<ProcessGroup> control,
                                                                       std::shared_ptr<CudaCommunicator> communicator,
                                                                       std::shared_ptr<Device> device,
                                                                       absl::Duration timeout) {
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> heartbeats, control->Split(0, control->rank()));
  std::unique_ptr<CudaProcessGroup> group(
      new CudaProcessGroup(std::move(control), std::move(communicator), std::move(device), timeout));
  // A rank that is blocked in GatherBlobs must learn of it too.
  const auto broken = [control = group->control_](const absl::Status& error) { control->Abort(error); };
  group->watch_ = std::make_unique<CollectiveWatch>(std::move(heartbeats), group->communicator_, timeout, broken);
  return group;
}

void CudaProcessGroup::AllGather(const Tensor& input, const Tensor& output, Stream& stream) {
  Issue(CheckAllGather(input, output, rank(), size()),
        {.op = CollectiveOp::kAllGather, .dtype = input.dtype(), .count = input.numel()}, input, output, stream);
}

void CudaProcessGroup::ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) {
  Issue(CheckReduceScatter(input, output, op, rank(), size()),
        {.op = CollectiveOp::kReduceScatter, .dtype = output.dtype(), .reduce_op = op, .count = output.numel()}, input,
        output, stream);
}

void CudaProcessGroup::AllReduce(const Tensor& t, ReduceOp op, Stream& stream) {
  Issue(CheckAllReduce(t, op),
        {.op = CollectiveOp::kAllReduce, .dtype = t.dtype(), .reduce_op = op, .count = t.numel()}, t, t, stream);
}

void CudaProcessGroup::Broadcast(const Tensor& t, int root, Stream& stream) {
  Issue(CheckBroadcast(t, root, size()),
        {.op = CollectiveOp::kBroadcast, .dtype = t.dtype(), .root = root, .count = t.numel()}, t, t, stream);
}

void CudaProcessGroup::Barrier(Stream& stream) {
  Issue(absl::OkStatus(), {.op = CollectiveOp::kBarrier}, Tensor(), Tensor(), stream);
}

// 1. What is issued runs after what was issued before, on whichever stream.
// 2. The watch knows of the call before it can block or spin.
// 3. The launch, in stream order; it is skipped when the stream has failed, which the watch learns from `last_`.
// 4. An average that the communicator makes worse than a sum is divided here.
// Wrong arguments are an error of the stream like any other: peers that had the right ones must be told.
void CudaProcessGroup::Issue(const absl::Status& arguments, const CollectiveSpec& spec, const Tensor& input,
                             const Tensor& output, Stream& stream) {
  const CollectiveId id = {.op = spec.op, .sequence = ++issued_};
  if (last_stream_ != nullptr && last_stream_ != &stream) stream.Wait(last_);
  last_stream_ = &stream;
  CudaStream& on = CudaStream::Of(stream);
  on.Watch(watch_->failure());
  watch_->Begin(id, spec, stream.Record());

  Collective collective = {.spec = spec,
                           .input = static_cast<const std::byte*>(input.data()),
                           .output = static_cast<std::byte*>(output.data())};
  const bool divides = spec.reduce_op == ReduceOp::kAvg && !communicator_->Averages(spec.dtype);
  if (divides) collective.spec.reduce_op = ReduceOp::kSum;
  const auto launch = [watch = watch_.get(), communicator = communicator_, arguments, id,
                       collective](CUstream_st* cuda_stream) -> absl::Status {
    RETURN_IF_ERROR(watch->Refuse(id));
    RETURN_IF_ERROR(arguments);
    if (collective.spec.count == 0 && collective.spec.op != CollectiveOp::kBarrier) return absl::OkStatus();
    const absl::Status launched = communicator->Launch(collective, cuda_stream);
    // When the watch has aborted it, its error says why.
    return !launched.ok() && !watch->failure()->status().ok() ? watch->failure()->status() : launched;
  };
  on.Issue({input.buffer(), output.buffer()}, launch);
  if (divides && arguments.ok()) device_->ops().CastDivide(output, output, size(), stream);
  last_ = stream.Record();
  watch_->End(id, last_);
}

absl::StatusOr<std::vector<std::string>> CudaProcessGroup::GatherBlobs(std::string_view blob) {
  const CollectiveId id = {.op = CollectiveOp::kGatherBlobs, .sequence = ++issued_};
  const absl::Status before = last_.Synchronize();
  RETURN_IF_ERROR(watch_->Refuse(id));
  if (!before.ok()) {
    watch_->GiveUp(before);
    return watch_->Refuse(id);
  }
  watch_->Begin(id, {.op = id.op, .count = static_cast<int64_t>(blob.size())}, Event());
  absl::StatusOr<std::vector<std::string>> blobs = control_->GatherBlobs(blob);
  watch_->End(id, Event());
  if (blobs.ok()) return blobs;
  RETURN_IF_ERROR(watch_->failure()->status());
  const absl::Status error(blobs.status().code(), absl::StrCat("rank ", rank(), " of ", size(), ": ", id.ToString(),
                                                               ": ", blobs.status().message()));
  watch_->GiveUp(error);
  return error;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CudaProcessGroup::Split(int color, int key) {
  const BlobGather gather = [this](std::string_view blob) { return GatherBlobs(blob); };
  // When all have gathered, nothing that was issued is running anywhere.
  ASSIGN_OR_RETURN(const std::vector<int> members, SplitMembers(gather, color, key));
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, control_->Split(color, key));
  absl::StatusOr<std::shared_ptr<CudaCommunicator>> communicator = communicator_->Split(members);
  RETURN_IF_ERROR(fsdp::AgreeOn(gather, communicator.status()));
  return Create(std::move(control), *std::move(communicator), device_, timeout_);
}

}  // namespace fsdp
