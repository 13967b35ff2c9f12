// SPDX-License-Identifier: Apache-2.0
//
// RoundBarrier: the barrier of the host backends, and the rule by which ranks exchange data around it.
//
// Rounds are numbered from 1. Descriptors and staging slots come in pairs; round k uses the one of parity k % 2:
//   a rank writes pair k % 2 after round k - 1 completed and before it arrives at round k;
//   its peers read it after round k completed and before they arrive at round k + 1.
// So nobody writes what may still be read: who writes for round k + 2 has seen round k + 1 complete, that is, everybody
// done with reading round k. A collective that moves all its data through slots therefore needs one barrier, not two.
//
// Used by one thread at a time, but for GiveUp. The fabric must outlive it.
#ifndef FSDP_COLLECTIVES_HOST_ROUND_BARRIER_H_
#define FSDP_COLLECTIVES_HOST_ROUND_BARRIER_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "fsdp/collectives/host/fabric.h"

namespace fsdp {

class RoundBarrier {
 public:
  RoundBarrier(const Fabric& fabric, absl::Duration timeout);

  // The parity of what this rank writes for the next Await, and of what it reads since the last.
  int write_parity() const { return static_cast<int>((round_ + 1) % 2); }
  int read_parity() const { return static_cast<int>(round_ % 2); }

  // Arrives at the next round and blocks until all ranks did. `what` is for errors.
  // kUnavailable when a missing rank died or left, the code of the rank that gave up when one did, kDeadlineExceeded
  // after the timeout; each names the ranks.
  absl::Status Await(const CollectiveId& what);

  // Bracket every read of memory that peers published, so that they can wait for this rank before they free it. Begin
  // fails when a peer gave up, after which its memory may be gone. Await and EndReading end it.
  absl::Status BeginReading(const CollectiveId& what);
  void EndReading();

  // Tells all ranks that this one failed; the first call of a rank counts. Any thread.
  void GiveUp(const absl::Status& reason);

  // Blocks until no peer reads this rank's memory; to be called after GiveUp, before that memory may be freed.
  void AwaitReaders() const;

  // Tells all ranks that this one will not come back, and is well.
  void Depart();

  absl::Duration timeout() const { return timeout_; }

 private:
  bool Complete() const;
  bool Spin() const;
  absl::Status Sleep(const CollectiveId& what, absl::Time start);
  absl::Status CheckPeers(const CollectiveId& what, absl::Time start) const;
  absl::Status CheckNobodyGaveUp(const CollectiveId& what) const;
  absl::Status GivenUp(const CollectiveId& what, int peer) const;
  std::vector<int> MissingRanks() const;
  std::string Prefix(const CollectiveId& what) const;  // "rank 2 of 8: all_gather #417"

  const Fabric& fabric_;
  const ControlBlock control_;
  const int size_;
  const absl::Duration timeout_;
  const bool may_spin_;  // before sleeping; not when ranks outnumber cores
  uint32_t round_ = 0;   // the last round that completed, or that this rank arrived at while in Await

  std::mutex give_up_mutex_;  // one thread of this rank writes its abort_text
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_ROUND_BARRIER_H_
