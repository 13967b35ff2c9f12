// SPDX-License-Identifier: Apache-2.0
//
// CollectiveWatch: ends the collectives of a CudaProcessGroup that cannot end by themselves. On a GPU a collective
// whose peer is missing, or runs another collective, spins for ever without an error. So each rank has a thread that
// exchanges heartbeats with the other ranks, in rounds over a group of host memory:
//   1. Every rank sends its calls since the last round, the progress of its streams, and its fault if it has one: a
//      stream that failed, an error of the communicator, a collective past its deadline, or Abort.
//   2. All ranks have the same heartbeats and derive the same verdict from them: a fault that a rank sent; calls that
//      differ; the ranks that are missing in a call past its deadline; ranks that leave. The host group names a peer
//      that died or was stopped.
//   3. On a verdict the watch first stores the error and then aborts the communicator: the spinning kernels end, and
//      threads that wait for the streams get the stored error (tensor/async_failure.h).
// A verdict, or a rank that leaves, ends the rounds; from then on each remaining rank checks its own deadlines only.
//
//   fault                                     found after about            error
//   fault of a stream or of the communicator  one round                    the code of the fault, the rank
//   calls that differ                         one round after both came    kFailedPrecondition, both sides
//   a peer's process or host died             the control group's time     kUnavailable, rank and pid, or the host
//   a peer does not reach a collective        `timeout`                    kDeadlineExceeded, the missing ranks
//   a peer is stopped (SIGSTOP)               the control group's timeout  kDeadlineExceeded, the missing ranks
//
// A round begins 20 ms after the last one, on many hosts later (HeartbeatInterval).
//
// Thread-safe, except that Begin and End are called by one thread at a time.
#ifndef FSDP_COLLECTIVES_CUDA_COLLECTIVE_WATCH_H_
#define FSDP_COLLECTIVES_CUDA_COLLECTIVE_WATCH_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fsdp/collectives/cuda/cuda_communicator.h"
#include "fsdp/collectives/cuda/heartbeat.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/async_failure.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// A group's first error. Streams may hold it for longer than the group exists.
class GroupFailure final : public AsyncFailure {
 public:
  // OK until Set was called with an error. Any thread.
  absl::Status status() const override;
  void Set(const absl::Status& status);

 private:
  mutable std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_
};

struct WatchTimes {
  absl::Duration timeout = absl::Minutes(10);      // of a collective, after a stream has reached it
  absl::Duration interval = HeartbeatInterval(1);  // between two rounds of heartbeats
};

class CollectiveWatch final {
 public:
  // `control`: used for heartbeats only. `broken` is called at most once, on any thread, with the first error, after
  // the communicator was aborted.
  CollectiveWatch(std::unique_ptr<ProcessGroup> control, std::shared_ptr<CudaCommunicator> communicator,
                  const WatchTimes& times, std::function<void(const absl::Status&)> broken);

  // Sends one more heartbeat, which announces that this rank leaves. Blocks until that round has ended.
  ~CollectiveWatch();

  // The group's first error.
  const std::shared_ptr<GroupFailure>& failure() const { return failure_; }

  // Registers a call of this rank, before it is put on its stream. `begun` is reached when the stream reaches the call.
  // End adds the event that is reached when the call is done; a call without one counts as running.
  void Begin(const CollectiveId& id, const CollectiveSpec& spec, Event begun);
  void End(const CollectiveId& id, Event ended);

  // OK while the group is not broken; else the error of this call, which quotes the first error.
  absl::Status Refuse(const CollectiveId& id);

  // Breaks the group because this rank gives up. The other ranks learn the reason in the next round.
  void GiveUp(const absl::Status& reason);

 private:
  // A call of this rank that is not known to have ended.
  struct Call {
    CollectiveId id;
    Event begun;
    std::optional<Event> ended;
    absl::Time since = absl::InfiniteFuture();  // when it was first seen to have begun
  };

  void Loop();
  void PollStreams();  // finds the progress of this rank's streams, and their errors
  bool Exchange();     // runs a round; false if it was the last one

  // The rules that turn a round's heartbeats into a verdict; the same on all ranks.
  bool Judge(const std::vector<Heartbeat>& beats);
  absl::Status Late(const std::vector<Heartbeat>& beats, int r) const;
  void CheckDeparted();
  absl::Status Disagreement(const std::vector<Heartbeat>& beats);

  // Stores the first error, aborts the communicator and calls broken_. Later errors have no effect.
  void Break(const absl::Status& error, int rank_that_gave_up);
  std::string Prefix(const CollectiveId& id) const;  // "rank 2 of 8: all_gather #417"
  std::string GaveUp(int rank, const absl::Status& reason) const;

  const std::unique_ptr<ProcessGroup> control_;
  const std::shared_ptr<CudaCommunicator> communicator_;
  const WatchTimes times_;
  const std::function<void(const absl::Status&)> broken_;
  const int rank_;
  const int size_;
  const std::shared_ptr<GroupFailure> failure_ = std::make_shared<GroupFailure>();  // set with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // All guarded by mutex_.
  std::deque<Call> calls_;  // in the order of issue; not known to have ended
  Heartbeat mine_;          // this rank's heartbeat in the next round
  int gave_up_ = -1;        // the rank that broke the group while this rank had no call; -1 after a call reported it
  absl::Status reason_;     // the error of gave_up_
  std::vector<uint64_t> departed_;  // by rank: the last call of a rank that left; empty while none did
  bool closing_ = false;

  std::map<uint64_t, std::map<int, CollectiveSpec>> unmatched_;  // thread_'s: calls that not all ranks have sent

  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_COLLECTIVE_WATCH_H_
