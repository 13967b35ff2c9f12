// SPDX-License-Identifier: Apache-2.0
//
// CollectiveTiming: times one collective at one size against a floor, for the benchmark: memcpy, or the wire between
// hosts. Rounds of the two alternate, so that other load on the machine affects both alike.
#ifndef FSDP_COLLECTIVES_CONFORMANCE_COLLECTIVE_TIMING_H_
#define FSDP_COLLECTIVES_CONFORMANCE_COLLECTIVE_TIMING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/conformance/socket_wire.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/process_group.h"

namespace fsdp {

// A line of the table. All times are seconds for a single collective, on the slowest rank.
struct Timing {
  // The collective, and the size after rounding.
  CollectiveOp op = CollectiveOp::kAllGather;
  DType dtype = DType::kFloat32;
  int64_t bytes = 0;  // S: all_gather's output, reduce_scatter's input, else the tensor
  double time = 0;    // median over the rounds
  double best = 0;    // fastest round
  double spread = 0;  // half the distance of the quartiles, relative to the median
  double algbw = 0;   // S / time, bytes per second
  double busbw = 0;   // algbw times the share of S that each rank receives from others
  double floor = 0;   // median time of the floor: memcpy of MemcpyBytes, or the wire
  double limit = 0;   // the algbw that the floor allows
  double share = 0;   // median over the rounds of algbw / limit, each pair measured together
};

// Bytes that each rank would have to memcpy for the memory traffic of one collective of S bytes on n ranks. A copy of B
// bytes reads B and writes B. all_gather in place copies S (n-1)/n; reduce_scatter reads S and writes S/n, as a copy of
// half of that sum; all_reduce is both; broadcast copies S on every rank but the root. Rank 0 is the root of a
// broadcast; a barrier copies nothing.
double MemcpyBytes(CollectiveOp op, double bytes, int size, int rank);

struct TimingOptions {
  int rounds = 15;  // of each measurement; odd, so that the median is one of them

  // If not null, the floor is plain sockets between hosts instead of memcpy: LinkBytes in both directions at the same
  // time, and up to 16 KiB a ping-pong of that many bytes. Not owned.
  SocketWire* wire = nullptr;
};

// Used by one thread of each rank; all ranks make the same calls, because every measurement is collective. Host devices
// only: Create touches the buffers by the CPU.
class CollectiveTimer {
 public:
  // Allocates and touches buffers for sizes up to `max_bytes`; every rank creates one. The group must outlive it.
  // kResourceExhausted if there is no room for the buffers.
  static absl::StatusOr<std::unique_ptr<CollectiveTimer>> Create(ProcessGroup& group, DType dtype, int64_t max_bytes,
                                                                 const TimingOptions& options = {});

  // Every rank calls it; all get the same result. `bytes` is rounded down to a multiple of the element and the ranks. A
  // round is a batch of about 20 ms, or one collective that is longer, and as many floors; two rounds warm up. Errors
  // come from the collectives and from the wire.
  absl::StatusOr<Timing> Measure(CollectiveOp op, int64_t bytes);

 private:
  // The times of a round on the slowest rank, in seconds for each collective and for each floor.
  struct Round {
    double collective = 0;
    double floor = 0;
  };

  CollectiveTimer(ProcessGroup& group, DType dtype, const TimingOptions& options)
      : group_(group), dtype_(dtype), options_(options) {}

  // Issue... put one operation on stream_, RunWire runs it; TimeBatch times `repeat` of them on the slowest rank.
  void IssueCollective(CollectiveOp op, int64_t bytes);
  void IssueCopy(CollectiveOp op, int64_t bytes);
  absl::Status RunWire(CollectiveOp op, int64_t bytes);
  // A batch of `repeat` collectives, then a batch of as many floors.
  absl::StatusOr<Round> RunRound(CollectiveOp op, int64_t bytes, int repeat);
  template <typename Issue>
  absl::StatusOr<double> TimeBatch(int repeat, const Issue& issue);

  // Not owned.
  ProcessGroup& group_;
  const DType dtype_;
  const TimingOptions options_;
  // Everything that is timed runs on this stream.
  std::unique_ptr<Stream> stream_;
  Buffer whole_;   // shared, [max_bytes]: all_gather's output, reduce_scatter's input, else the tensor
  Buffer part_;    // shared, a rank's part of it: reduce_scatter's output
  Buffer source_;  // private, [max_bytes]: for the floor
  Buffer destination_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CONFORMANCE_COLLECTIVE_TIMING_H_
