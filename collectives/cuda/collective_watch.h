// SPDX-License-Identifier: Apache-2.0
//
// CollectiveWatch: sees that the collectives of a rank's CudaProcessGroup come to an end. On a GPU a collective whose
// peer is missing, or does something else, spins for ever and says nothing. So a thread of each rank meets those of the
// others in rounds of heartbeats, over a group of host memory:
//   1. Every rank tells its calls since the last round, how far its streams have come, and its fault if it has one: a
//      stream that failed, an error of the communicator, a collective beyond its deadline, an Abort.
//   2. All ranks thus know the same, and come to the same verdict: what a rank told as its fault; calls that differ;
//      who is missing in what waited too long; who left. A peer that died or stopped is named by the host group.
//   3. With a verdict, the watch first holds the error and then aborts the communicator: kernels that spin end, and
//      whoever waits for the streams finds the error (tensor/async_failure.h).
// A verdict, or a rank that leaves, ends the rounds; each rank that is left watches its own deadlines from then on.
//
// Thread-safe; but calls are told by one thread at a time.
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

// A group's first error; streams may hold it for longer than there is a group.
class GroupFailure final : public AsyncFailure {
 public:
  absl::Status status() const override;
  void Set(const absl::Status& status);

 private:
  mutable std::mutex mutex_;
  absl::Status status_;  // guarded by mutex_
};

class CollectiveWatch final {
 public:
  // `control`: for the heartbeats alone. `broken` is called once, by any thread, when there is an error, after the
  // communicator was aborted.
  CollectiveWatch(std::unique_ptr<ProcessGroup> control, std::shared_ptr<CudaCommunicator> communicator,
                  absl::Duration timeout, std::function<void(const absl::Status&)> broken);

  // Tells the peers that this rank leaves.
  ~CollectiveWatch();

  // The group's first error.
  const std::shared_ptr<GroupFailure>& failure() const { return failure_; }

  // A call that this rank makes. `begun` is reached when its stream gets there, `ended` when it is done; until End, it
  // is not.
  void Begin(const CollectiveId& id, const CollectiveSpec& spec, Event begun);
  void End(const CollectiveId& id, Event ended);

  // The error of a call to a group that is broken; OK when it is not.
  absl::Status Refuse(const CollectiveId& id);

  // This rank gives up.
  void GiveUp(const absl::Status& reason);

 private:
  struct Call {
    CollectiveId id;
    Event begun;
    std::optional<Event> ended;
    absl::Time since = absl::InfiniteFuture();  // when it was first seen to have begun
  };

  void Loop();
  void Sweep();     // what this rank's streams have come to
  bool Exchange();  // a round; false when it was the last
  bool Judge(const std::vector<Heartbeat>& beats);
  absl::Status Late(const std::vector<Heartbeat>& beats, int r) const;
  void CheckDeparted();
  absl::Status Disagreement(const std::vector<Heartbeat>& beats);
  void Break(const absl::Status& error, int rank_that_gave_up);
  std::string Prefix(const CollectiveId& id) const;  // "rank 2 of 8: all_gather #417"
  std::string GaveUp(int rank, const absl::Status& reason) const;

  const std::unique_ptr<ProcessGroup> control_;
  const std::shared_ptr<CudaCommunicator> communicator_;
  const absl::Duration timeout_;
  const std::function<void(const absl::Status&)> broken_;
  const int rank_;
  const int size_;
  const std::shared_ptr<GroupFailure> failure_ = std::make_shared<GroupFailure>();  // set with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // All guarded by mutex_.
  std::deque<Call> calls_;  // begun or not, not known to have ended
  Heartbeat mine_;          // what the next round tells
  int gave_up_ = -1;        // the rank whose error failure_ is, until it is told together with the call that it hit
  absl::Status reason_;     // that rank's
  std::vector<uint64_t> departed_;  // by rank: the last call of one that left; empty while none did
  bool closing_ = false;

  std::map<uint64_t, std::map<int, CollectiveSpec>> unmatched_;  // thread_'s: calls that not all ranks have told

  std::thread thread_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_COLLECTIVE_WATCH_H_
