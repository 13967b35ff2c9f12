// SPDX-License-Identifier: Apache-2.0
//
// Transport: messages between the ranks of one group, over any network that joins their hosts. One object per rank and
// group. It does not interpret the messages (net_collectives.h), but it reports the state of peers: every wait ends
// with the messages, or with an error that names the rank that did not send them (peer_states.h).
//
// Implementations: ucx_transport.h between processes; thread_transport.h between threads, for tests.
//
// Exchange, ExchangeInSteps, AwaitSends and Split are called by one thread at a time, the other functions by any
// thread.
#ifndef FSDP_COLLECTIVES_NET_TRANSPORT_H_
#define FSDP_COLLECTIVES_NET_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/net/peer_states.h"

namespace fsdp {

// A message to `peer`, which is not this rank, of at least one byte. The memory is not owned.
struct Send {
  int peer = 0;
  const std::byte* data = nullptr;
  int64_t nbytes = 0;
};

// The next message from `peer`, which must have exactly `nbytes` bytes, at least one.
struct Receive {
  int peer = 0;
  std::byte* data = nullptr;
  int64_t nbytes = 0;
};

// The messages that a rank sends and receives at a time.
struct Messages {
  std::vector<Send> sends;
  std::vector<Receive> receives;
};

// Exchanges that follow each other, of which kStepsUnderWay overlap: while the caller adds the data of one step, the
// next step is under way. All ranks have equally many steps; some may be empty.
struct Pipeline {
  int64_t steps = 0;
  // Returns the messages of a step, called in the order of steps: their memory belongs to the transport until `end` is
  // called. `begin` of step i is called after `end` of step i - kStepsUnderWay.
  std::function<absl::StatusOr<Messages>(int64_t step)> begin;
  // All messages of the step are received, and the memory of its sends may change. In the order of steps.
  std::function<absl::Status(int64_t step)> end;
};
inline constexpr int64_t kStepsUnderWay = 2;

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Blocks until all messages are received and the memory of all sends may change. Messages from one rank to another
  // are received in the order in which they were sent. `what` is for errors, and for the order of notices: kUnavailable
  // if a peer that this rank waits for left or is lost, the code of a rank that gave up, kDataLoss if a message has
  // another size, kDeadlineExceeded after `timeout`. After an error, the memory of receives does not change any more,
  // the memory of sends may still be read until AwaitSends, and the transport carries only notices.
  virtual absl::Status Exchange(absl::Span<const Send> sends, absl::Span<const Receive> receives,
                                const CollectiveId& what, absl::Duration timeout) = 0;

  // Runs all exchanges of a pipeline; each wait is at most `timeout`. Errors as in Exchange, and from the pipeline's
  // functions. This implementation runs one step after the other; a transport that can overlap them does.
  virtual absl::Status ExchangeInSteps(const Pipeline& pipeline, const CollectiveId& what, absl::Duration timeout);

  // Blocks until no message of a failed Exchange is read from this rank's memory; closes connections if necessary.
  virtual void AwaitSends() = 0;

  // Sends the notice to all peers. Does not wait for them. Once per transport; later calls have no effect.
  virtual void Tell(const Notice& notice) = 0;

  // As PeerStates.
  virtual absl::Status CheckNobodyGaveUp(const CollectiveId& what) const = 0;
  virtual int first_rank_to_give_up() const = 0;

  // A transport for `members`, ranks of this one that include this rank, in their new order. Every rank of this
  // transport calls it at the same time, each with its own set, all sets disjoint; `gather` gathers over this group.
  virtual absl::StatusOr<std::unique_ptr<Transport>> Split(const std::vector<int>& members,
                                                           const BlobGather& gather) = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_TRANSPORT_H_
