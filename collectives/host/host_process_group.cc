// SPDX-License-Identifier: Apache-2.0
//
// A collective takes a ticket when it is issued and runs on its stream's thread when that ticket's turn comes. So the
// collectives of a group run one at a time and in the order of issue, although on several streams, and the ranks need
// not agree on streams, only on the order of calls. A stream that reaches a later ticket first blocks until its turn.
//
// Every ticket must be served, or the later ones would wait for ever. For this reason collectives are RunAlways work:
// it also runs on a stream that has failed, and then breaks the group instead of computing.
#include "fsdp/collectives/host/host_process_group.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/blob_gather.h"

namespace fsdp {

HostProcessGroup::HostProcessGroup(std::unique_ptr<BlockingCollectives> collectives)
    : creator_pid_(getpid()), collectives_(std::move(collectives)) {}

HostProcessGroup::~HostProcessGroup() {
  if (getpid() == creator_pid_) {
    collectives_->Depart();
  }
}

void HostProcessGroup::AllGather(const Tensor& input, const Tensor& output, Stream& stream) {
  Issue(CheckAllGather(input, output, rank(), size()),
        {.spec = {.op = CollectiveOp::kAllGather, .dtype = input.dtype(), .count = input.numel()},
         .input = input,
         .output = output},
        stream);
}

void HostProcessGroup::ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) {
  Issue(
      CheckReduceScatter(input, output, op, rank(), size()),
      {.spec = {.op = CollectiveOp::kReduceScatter, .dtype = output.dtype(), .reduce_op = op, .count = output.numel()},
       .input = input,
       .output = output},
      stream);
}

void HostProcessGroup::AllReduce(const Tensor& t, ReduceOp op, Stream& stream) {
  Issue(CheckAllReduce(t, op),
        {.spec = {.op = CollectiveOp::kAllReduce, .dtype = t.dtype(), .reduce_op = op, .count = t.numel()},
         .input = t,
         .output = t},
        stream);
}

void HostProcessGroup::Broadcast(const Tensor& t, int root, Stream& stream) {
  Issue(CheckBroadcast(t, root, size()),
        {.spec = {.op = CollectiveOp::kBroadcast, .dtype = t.dtype(), .root = root, .count = t.numel()},
         .input = t,
         .output = t},
        stream);
}

void HostProcessGroup::Barrier(Stream& stream) {
  Issue(absl::OkStatus(), {.spec = {.op = CollectiveOp::kBarrier}}, stream);
}

// Wrong arguments become an error of the stream, and not a return value: the peers, whose arguments may be right, must
// be released from the collective.
void HostProcessGroup::Issue(const absl::Status& arguments, const Issued& issued, Stream& stream) {
  absl::Status problem = arguments;
  if (problem.ok() && stream.device().type() != DeviceType::kCpu) {
    problem = absl::UnimplementedError(absl::StrCat("backend ", std::string(backend()),
                                                    " takes host memory, the stream is on ", stream.device().name()));
  }
  const uint64_t ticket = line_.Take();
  stream.RunAlways([this, ticket, problem = std::move(problem), issued](const absl::Status& so_far) {
    return RunInTurn(ticket, so_far.ok() ? problem : so_far, issued);
  });
}

absl::Status HostProcessGroup::RunInTurn(uint64_t ticket, const absl::Status& so_far, const Issued& issued) {
  return line_.Serve(ticket, [&]() -> absl::Status {
    const CollectiveOp op = issued.spec.op;
    if (!broken_.ok()) {
      return BrokenError(ticket, op);
    }
    if (!so_far.ok()) {
      return Fail(so_far);
    }
    const absl::Status status = collectives_->Run(ticket, {.spec = issued.spec,
                                                           .input = static_cast<const std::byte*>(issued.input.data()),
                                                           .output = static_cast<std::byte*>(issued.output.data())});
    return status.ok() ? status : Fail(status);
  });
}

// Releases the peers that wait for this rank, then waits until no peer reads memory that returns to the caller.
absl::Status HostProcessGroup::Fail(absl::Status error) {
  broken_ = error;
  collectives_->GiveUp(error);
  collectives_->AwaitReaders();
  return error;
}

absl::Status HostProcessGroup::BrokenError(uint64_t ticket, CollectiveOp op) const {
  return Annotate(broken_, absl::StrCat("rank ", rank(), " of ", size(), ": ", CollectiveId{op, ticket}.ToString(),
                                        ": the group is broken since its first error"));
}

absl::StatusOr<std::vector<std::string>> HostProcessGroup::AllGatherObject(std::string_view blob) {
  const uint64_t ticket = line_.Take();
  return line_.Serve(ticket, [&]() -> absl::StatusOr<std::vector<std::string>> {
    if (!broken_.ok()) {
      return BrokenError(ticket, CollectiveOp::kAllGatherObject);
    }
    absl::StatusOr<std::vector<std::string>> blobs = collectives_->AllGatherObject(ticket, blob);
    return blobs.ok() ? std::move(blobs) : Fail(blobs.status());
  });
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> HostProcessGroup::Split(int color, int key) {
  const BlobGather gather = [this](std::string_view blob) { return AllGatherObject(blob); };
  FSDP_ASSIGN_OR_RETURN(const std::vector<int> members, SplitMembers(gather, color, key));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<BlockingCollectives> part, collectives_->Split(members, gather));
  return std::make_unique<HostProcessGroup>(std::move(part));
}

}  // namespace fsdp
