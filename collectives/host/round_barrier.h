// SPDX-License-Identifier: Apache-2.0
//
// RoundBarrier: the barrier of the host backends, and the rule by which ranks exchange data around it.
//
// Rounds are numbered from 1. Descriptors and staging slots come in pairs; round k uses the one of parity k % 2:
//   a rank writes pair k % 2 after round k - 1 completed and before it arrives at round k;
//   its peers read it after round k completed and before they arrive at round k + 1.
// So no rank writes a pair that a peer may still read: a rank that writes for round k + 2 has seen round k + 1
// complete, and every peer finished reading round k before it arrived there. A collective that moves all its data
// through slots therefore needs one barrier, not two.
//
//   round        k - 1            k            k + 1          k + 2
//   pair 0 (k even)   |  written  |  read        |  written     |  read
//   pair 1            |  read     |  written     |  read        |  written
//
// Used by one thread at a time, except for GiveUp. The fabric must outlive it.
#ifndef FSDP_COLLECTIVES_HOST_ROUND_BARRIER_H_
#define FSDP_COLLECTIVES_HOST_ROUND_BARRIER_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/host/fabric.h"

namespace fsdp {

// The names of ranks in errors if the fabric is a part of the group that the program sees: their numbers in that group.
struct RankNames {
  std::vector<int> numbers = {};  // by rank of the fabric; empty if the fabric is the whole group
  int group_size = 0;
};

class RoundBarrier {
 public:
  RoundBarrier(const Fabric& fabric, absl::Duration timeout, RankNames names = {}, PeerWatch watch = nullptr);

  // The parity of the pair that this rank writes for the next Await, and of the pair that it reads since the last one.
  int write_parity() const { return static_cast<int>((round_ + 1) % 2); }
  int read_parity() const { return static_cast<int>(round_ % 2); }

  // Arrives at the next round and blocks until all ranks have arrived. `what` is for errors, which name the ranks:
  // kUnavailable if a missing rank died or left, noticed after at most 50 ms; the code of the rank that gave up, if one
  // did; the error of the watch, as late; kDeadlineExceeded after the timeout and `grace`, which is for a rank whose
  // peers may themselves wait for others.
  absl::Status Await(const CollectiveId& what, absl::Duration grace = absl::ZeroDuration());

  // Bracket every read of memory that peers published, so that they can wait for this rank before they free it. Begin
  // fails if a peer gave up, because its memory may be gone. Await and EndReading end it.
  absl::Status BeginReading(const CollectiveId& what);
  void EndReading();

  // Announces to all ranks that this one failed. Only the first call of a rank has an effect. Any thread.
  void GiveUp(const absl::Status& reason);

  // Blocks until no peer reads this rank's memory. Call it after GiveUp, before that memory is freed.
  void AwaitReaders() const;

  // Announces to all ranks that this one leaves without an error. Peers that wait for it in a later round fail.
  void Depart();

  absl::Duration timeout() const { return timeout_; }
  const PeerWatch& watch() const { return watch_; }

 private:
  // Await spins, then sleeps; CheckPeers finds the reasons to stop waiting.
  bool Complete() const;
  bool Spin() const;
  absl::Status Sleep(const CollectiveId& what, absl::Time start);
  absl::Status CheckPeers(const CollectiveId& what, absl::Time start) const;
  absl::Status CheckNobodyGaveUp(const CollectiveId& what) const;
  absl::Status GivenUp(const CollectiveId& what, int peer) const;
  std::vector<int> MissingRanks() const;
  std::string Prefix(const CollectiveId& what) const;  // "rank 2 of 8: all_gather #417"
  std::string NameOf(int peer) const;                  // "rank 5 (pid 1234)"
  int NumberOf(int r) const { return names_.numbers.empty() ? r : names_.numbers[r]; }

  const Fabric& fabric_;
  const ControlBlock control_;
  const int size_;
  const absl::Duration timeout_;
  const RankNames names_;
  const PeerWatch watch_;
  const bool may_spin_;  // before sleeping; false if there are more ranks than cores
  uint32_t round_ = 0;   // the last round that completed, or, in Await, the round that this rank arrived at

  std::mutex give_up_mutex_;  // one thread of this rank writes its abort_text
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_ROUND_BARRIER_H_
