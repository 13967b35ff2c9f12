// SPDX-License-Identifier: Apache-2.0
//
// CudaProcessGroup: a ProcessGroup over a CudaCommunicator: backends "nccl" and, between threads, "local" on GPUs. It
// puts collectives on CUDA streams in the order of issue; the host does not wait between them. A CollectiveWatch finds
// faults that the GPU itself does not report: Stream::Synchronize returns them after some tens of milliseconds. The
// order of summation is the communicator's.
//
// Collectives on a stream whose work is captured (tensor/work_graph.h) go into the graph, if the communicator
// CanCapture; each replay then counts, and is watched, as one call of the group. The group must outlive the graph.
#ifndef FSDP_COLLECTIVES_CUDA_CUDA_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_CUDA_CUDA_PROCESS_GROUP_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/collectives/cuda/collective_watch.h"
#include "fsdp/collectives/cuda/cuda_communicator.h"
#include "fsdp/collectives/group/capturing_group.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/group/symmetric_group.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

class CudaProcessGroup final : public ProcessGroup,
                               public CoalescingGroup,
                               public CapturingGroup,
                               public SymmetricGroup {
 public:
  // Every rank calls it. `control`: a group of the same ranks in host memory, for blobs and heartbeats; its timeout
  // applies to blobs, and to peers whose process is stopped. `device`: a CUDA device. Blocks: the watch gets a split of
  // `control`. Parts of the group have the same times.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Create(std::unique_ptr<ProcessGroup> control,
                                                              std::shared_ptr<CudaCommunicator> communicator,
                                                              std::shared_ptr<Device> device, const WatchTimes& times);

  // Rank and size come from `control`, which has the same ranks in the same order.
  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  std::string_view backend() const override { return communicator_->backend(); }
  const std::shared_ptr<Device>& device() const override { return device_; }
  absl::Duration timeout() const override { return times_.timeout; }

  // Errors come from the communicator; with NCCL the memory is registered.
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return communicator_->Allocate(nbytes); }
  // Contracts as in ProcessGroup. Wrong arguments, like all failures, become an error of the stream; the watch then
  // releases the peers.
  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override;
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override;
  void AllReduce(const Tensor& t, ReduceOp op, Stream& stream) override;
  void Broadcast(const Tensor& t, int root, Stream& stream) override;
  void Barrier(Stream& stream) override;

  // The launches of one stream become one group call of NCCL. See coalesced_calls.h.
  void BeginCoalescing() override { coalesced_.emplace(); }
  void EndCoalescing() override;

  // False for groups between threads, whose collectives need the host.
  bool CanCapture() const override { return communicator_->CanCapture(); }

  // Waits for all collectives that were issued before, then gathers over `control`.
  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override;
  absl::StatusOr<std::vector<std::string>> AllGatherObjectUnordered(std::string_view blob) override;
  // Blocks until the collectives of all ranks have ended; the part has its own communicator and watch.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override;

  // See symmetric_group.h. For groups between threads CheckWindows is an error.
  bool RegistersMemory() const override { return communicator_->RegistersMemory(); }
  absl::Status CheckWindows() const override { return communicator_->CheckWindows(CommunicatorPolicy::kDefault); }
  absl::StatusOr<std::unique_ptr<SymmetricWindow>> RegisterWindow(const Buffer& memory) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> SplitForCopyEngines() override;

  // The peers learn of it in the next round of the watch. Any thread.
  void Abort(const absl::Status& reason) override { watch_->GiveUp(reason); }

 private:
  CudaProcessGroup(std::unique_ptr<ProcessGroup> control, std::shared_ptr<CudaCommunicator> communicator,
                   std::shared_ptr<Device> device, const WatchTimes& times);

  // Counts the replays of one graph, and registers them with the watch.
  class Replays;

  // A call of this rank: its number, the result of the argument check, and its tensors, which keep their memory
  // alive.
  struct Call {
    CollectiveId id;
    absl::Status arguments;
    CollectiveSpec spec;
    Tensor input, output;
  };

  absl::StatusOr<std::unique_ptr<ProcessGroup>> SplitBy(int color, int key, CommunicatorPolicy policy);

  // Issue numbers a call and collects it if calls are coalesced; Put puts calls on their stream.
  void Issue(absl::Status arguments, const CollectiveSpec& spec, const Tensor& input, const Tensor& output,
             Stream& stream);
  void Put(const std::vector<Call>& calls, Stream& stream);

  // True for an average that the communicator cannot compute: it is launched as a sum and divided afterwards.
  bool IsDividedAfter(const CollectiveSpec& spec) const;

  // Makes the next work on `stream` wait for the last issued collective, if that was on another stream.
  void Follow(Stream& stream);

  // Counts a call that becomes part of the graph of `recording`; sets the recording's error if it cannot be captured.
  void MarkCaptured(const CollectiveId& id, const std::shared_ptr<CudaRecording>& recording);

  const std::shared_ptr<ProcessGroup> control_;
  const std::shared_ptr<CudaCommunicator> communicator_;
  const std::shared_ptr<Device> device_;
  const WatchTimes times_;
  std::unique_ptr<CollectiveWatch> watch_;
  uint64_t issued_ = 0;
  Event last_;                                  // reached when the last issued collective has ended
  const Stream* last_stream_ = nullptr;         // only compared, never used: the stream may be gone
  std::optional<std::vector<Call>> coalesced_;  // between Begin- and EndCoalescing
  Stream* coalesced_stream_ = nullptr;          // the stream of coalesced_
  std::shared_ptr<Replays> replays_;            // of the capture that last took a collective
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_CUDA_PROCESS_GROUP_H_
