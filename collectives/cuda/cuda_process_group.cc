// SPDX-License-Identifier: Apache-2.0
//
// The life of one call, on its rank:
//
//   Issue: number, argument check --> Put: wait for the call before (Follow) --> watch Begin --> launch --> watch End
//                                      (coalesced calls are collected and go through Put together)
//
// All calls of a group run in the order of issue, although on any streams: NCCL requires that all ranks launch the
// collectives of one communicator in one order, and two kernels of one communicator that ran at the same time could
// wait for each other in opposite orders on two ranks. Follow enforces that order with events, on the GPU.
#include "fsdp/collectives/cuda/cuda_process_group.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/cuda/cuda_recording.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {

// The collectives of this group in one graph. Together they are one call of the group per replay: the host is not
// involved between them, so it cannot number or watch them one by one.
class CudaProcessGroup::Replays final : public ReplayObserver {
 public:
  Replays(CudaProcessGroup& group, std::weak_ptr<CudaRecording> recording)
      : group_(group), recording_(std::move(recording)) {}

  bool IsOf(const std::shared_ptr<CudaRecording>& recording) const { return recording_.lock() == recording; }
  void Count() { ++collectives_; }

  void BeforeReplay(Stream& stream) override {
    id_ = {.op = CollectiveOp::kReplay, .sequence = ++group_.issued_};
    group_.Follow(stream);
    group_.watch_->Begin(id_, {.op = id_.op, .count = collectives_}, stream.Record());
    // CheckReplay may run on the stream's thread after the next BeforeReplay, so ids wait in a queue.
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(id_);
  }

  absl::Status CheckReplay() override {
    CollectiveId id;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      id = waiting_.front();
      waiting_.pop_front();
    }
    return group_.watch_->Refuse(id);
  }

  void AfterReplay(const Event& done) override {
    group_.last_ = done;
    group_.watch_->End(id_, done);
  }

 private:
  CudaProcessGroup& group_;
  const std::weak_ptr<CudaRecording> recording_;
  int64_t collectives_ = 0;
  CollectiveId id_;
  std::mutex mutex_;
  std::deque<CollectiveId> waiting_;  // guarded by mutex_
};

CudaProcessGroup::CudaProcessGroup(std::unique_ptr<ProcessGroup> control,
                                   std::shared_ptr<CudaCommunicator> communicator, std::shared_ptr<Device> device,
                                   const WatchTimes& times)
    : control_(std::move(control)), communicator_(std::move(communicator)), device_(std::move(device)), times_(times) {}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CudaProcessGroup::Create(std::unique_ptr<ProcessGroup> control,
                                                                       std::shared_ptr<CudaCommunicator> communicator,
                                                                       std::shared_ptr<Device> device,
                                                                       const WatchTimes& times) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> heartbeats, control->Split(0, control->rank()));
  std::unique_ptr<CudaProcessGroup> group(
      new CudaProcessGroup(std::move(control), std::move(communicator), std::move(device), times));
  // Releases a rank that is blocked in AllGatherObject.
  const auto broken = [control = group->control_](const absl::Status& error) { control->Abort(error); };
  group->watch_ = std::make_unique<CollectiveWatch>(std::move(heartbeats), group->communicator_, times, broken);
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

void CudaProcessGroup::Follow(Stream& stream) {
  if (last_stream_ != nullptr && last_stream_ != &stream) stream.Wait(last_);
  last_stream_ = &stream;
}

// The first captured call of a graph adds an observer to it, which turns each replay into one numbered, watched call.
void CudaProcessGroup::MarkCaptured(const CollectiveId& id, const std::shared_ptr<CudaRecording>& recording) {
  if (!communicator_->CanCapture()) {
    recording->Note(absl::FailedPreconditionError(
        absl::StrCat(CollectiveOpName(id.op), " of ", size(), " ranks cannot be captured: backend ",
                     std::string(backend()), " needs the ranks' threads in every collective; nccl does not")));
  }
  recording->Note(watch_->Refuse(id));
  if (replays_ == nullptr || !replays_->IsOf(recording)) {
    replays_ = std::make_shared<Replays>(*this, recording);
    recording->Add(replays_);
  }
  replays_->Count();
}

// Wrong arguments become an error of the stream, as failures do, and not a return value: the peers may have made the
// call with the right arguments and must be released from it.
void CudaProcessGroup::Issue(absl::Status arguments, const CollectiveSpec& spec, const Tensor& input,
                             const Tensor& output, Stream& stream) {
  // A captured call has no number; each replay of its graph gets one.
  const CollectiveId id = {.op = spec.op, .sequence = IsCapturing(stream) ? 0 : ++issued_};
  if (coalesced_.has_value() && !coalesced_->empty() && &stream != coalesced_stream_) {
    arguments =
        absl::InvalidArgumentError(absl::StrCat("coalesced calls on streams \"", std::string(coalesced_stream_->name()),
                                                "\" and \"", std::string(stream.name()), "\": expected one"));
  }
  Call call = {.id = id, .arguments = std::move(arguments), .spec = spec, .input = input, .output = output};
  if (!coalesced_.has_value()) return Put({std::move(call)}, stream);
  if (coalesced_->empty()) coalesced_stream_ = &stream;
  coalesced_->push_back(std::move(call));
}

void CudaProcessGroup::EndCoalescing() {
  const std::vector<Call> calls = *std::exchange(coalesced_, std::nullopt);
  if (!calls.empty()) Put(calls, *coalesced_stream_);
}

// 1. The calls run after those issued before, on any stream.
// 2. The watch knows a call before the call can block or spin. It learns of a captured call at each replay.
// 3. The launch, in stream order. It is skipped if the stream has failed; the watch learns of it from `last_`.
// 4. Averages that the communicator cannot compute are divided by the number of ranks.
void CudaProcessGroup::Put(const std::vector<Call>& calls, Stream& stream) {
  CudaStream& on = CudaStream::Of(stream);
  Follow(stream);
  on.Watch(watch_->failure());
  std::vector<Collective> collectives;
  std::vector<Buffer> uses;
  absl::Status arguments;
  for (const Call& call : calls) {
    on.capturing() ? MarkCaptured(call.id, on.recording()) : watch_->Begin(call.id, call.spec, stream.Record());
    arguments.Update(call.arguments);
    uses.insert(uses.end(), {call.input.buffer(), call.output.buffer()});
    if (call.spec.count == 0 && call.spec.op != CollectiveOp::kBarrier) continue;
    collectives.push_back({.spec = call.spec,
                           .input = static_cast<const std::byte*>(call.input.data()),
                           .output = static_cast<std::byte*>(call.output.data())});
    if (IsDividedAfter(call.spec)) collectives.back().spec.reduce_op = ReduceOp::kSum;
  }
  const auto launch = [watch = watch_.get(), communicator = communicator_, arguments, id = calls[0].id,
                       collectives = std::move(collectives)](CUstream_st* cuda_stream) -> absl::Status {
    FSDP_RETURN_IF_ERROR(watch->Refuse(id));
    FSDP_RETURN_IF_ERROR(arguments);
    if (collectives.empty()) return absl::OkStatus();
    const absl::Status launched = communicator->Launch(collectives, cuda_stream);
    // If the watch aborted the communicator, the watch's error has the reason.
    return !launched.ok() && !watch->failure()->status().ok() ? watch->failure()->status() : launched;
  };
  on.Issue(std::move(uses), launch);
  for (const Call& call : calls) {
    if (IsDividedAfter(call.spec) && arguments.ok()) {
      device_->ops().CastDivide(call.output, call.output, size(), stream);
    }
  }
  last_ = stream.Record();
  for (const Call& call : calls) {
    if (!on.capturing()) watch_->End(call.id, last_);
  }
}

bool CudaProcessGroup::IsDividedAfter(const CollectiveSpec& spec) const {
  return spec.reduce_op == ReduceOp::kAvg && !communicator_->CanAverage(spec.dtype);
}

// Blobs go over the host group, but count as a call of this group: if a peer makes another call instead, the watch
// reports the disagreement immediately. The host group would only find a rank missing at its deadline.
absl::StatusOr<std::vector<std::string>> CudaProcessGroup::AllGatherObject(std::string_view blob) {
  const CollectiveId id = {.op = CollectiveOp::kAllGatherObject, .sequence = ++issued_};
  const absl::Status before = last_.Synchronize();
  FSDP_RETURN_IF_ERROR(watch_->Refuse(id));
  if (!before.ok()) {
    watch_->GiveUp(before);
    return watch_->Refuse(id);
  }
  watch_->Begin(id, {.op = id.op, .count = static_cast<int64_t>(blob.size())}, Event());
  absl::StatusOr<std::vector<std::string>> blobs = control_->AllGatherObject(blob);
  watch_->End(id, Event());
  if (blobs.ok()) return blobs;
  FSDP_RETURN_IF_ERROR(watch_->failure()->status());
  const absl::Status error =
      Annotate(blobs.status(), absl::StrCat("rank ", rank(), " of ", size(), ": ", id.ToString()));
  watch_->GiveUp(error);
  return error;
}

// Not a call of this group: the watch, which compares the calls of ranks in order, does not see it.
absl::StatusOr<std::vector<std::string>> CudaProcessGroup::AllGatherObjectUnordered(std::string_view blob) {
  FSDP_RETURN_IF_ERROR(watch_->failure()->status());
  absl::StatusOr<std::vector<std::string>> blobs = control_->AllGatherObject(blob);
  if (blobs.ok()) return blobs;
  FSDP_RETURN_IF_ERROR(watch_->failure()->status());
  const absl::Status error =
      Annotate(blobs.status(), absl::StrCat("rank ", rank(), " of ", size(), ": blobs of the hosts"));
  watch_->GiveUp(error);
  return error;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CudaProcessGroup::Split(int color, int key) {
  return SplitBy(color, key, CommunicatorPolicy::kDefault);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CudaProcessGroup::SplitBy(int color, int key, CommunicatorPolicy policy) {
  const BlobGather gather = [this](std::string_view blob) { return AllGatherObject(blob); };
  // AllGatherObject waits for this rank's collectives, so once all ranks have gathered, none is running on any rank.
  FSDP_ASSIGN_OR_RETURN(const std::vector<int> members, SplitMembers(gather, color, key));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, control_->Split(color, key));
  absl::StatusOr<std::shared_ptr<CudaCommunicator>> communicator = communicator_->Split(members, policy);
  FSDP_RETURN_IF_ERROR(fsdp::AllReduceStatus(gather, communicator.status()));
  return Create(std::move(control), *std::move(communicator), device_, times_);
}

namespace {

constexpr char kRefusal = '!';  // begins the blob of a rank that cannot register a window

// The error that all ranks derive from the same blobs, or OK.
absl::Status CompareWindows(const std::vector<std::string>& blobs) {
  for (size_t r = 0; r < blobs.size(); ++r) {
    const std::string rank = absl::StrCat("rank ", r, " of ", blobs.size());
    if (!blobs[r].empty() && blobs[r][0] == kRefusal) {
      return absl::FailedPreconditionError(absl::StrCat(rank, ": ", blobs[r].substr(1)));
    }
    if (blobs[r] == blobs[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat("symmetric window: ", rank, " has ", blobs[r], ", rank 0 has ",
                                                      blobs[0], ": expected equal sizes on all ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

// The ranks agree before and after the registration, which would wait for ever for a rank that does not take part.
absl::StatusOr<std::unique_ptr<SymmetricWindow>> CudaProcessGroup::RegisterWindow(const Buffer& memory) {
  absl::Status mine = CheckWindows();
  if (mine.ok() && memory.device() != device_->id()) {
    mine = absl::InvalidArgumentError(absl::StrCat("symmetric window: its memory is on ", DeviceName(memory.device()),
                                                   ": expected ", device_->name()));
  }
  FSDP_ASSIGN_OR_RETURN(
      const std::vector<std::string> blobs,
      AllGatherObject(mine.ok() ? absl::StrCat(memory.nbytes(), " bytes")
                                : absl::StrCat(std::string(1, kRefusal), std::string(mine.message()))));
  FSDP_RETURN_IF_ERROR(CompareWindows(blobs));
  absl::StatusOr<std::unique_ptr<SymmetricWindow>> window = communicator_->RegisterWindow(memory);
  FSDP_RETURN_IF_ERROR(fsdp::AllReduceStatus(*this, window.status()));
  return window;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> CudaProcessGroup::SplitForCopyEngines() {
  FSDP_RETURN_IF_ERROR(fsdp::AllReduceStatus(*this, communicator_->CheckWindows(CommunicatorPolicy::kCopyEngines)));
  return SplitBy(/*color=*/0, /*key=*/rank(), CommunicatorPolicy::kCopyEngines);
}

}  // namespace fsdp
