// SPDX-License-Identifier: Apache-2.0
//
// ColumnMeeting: the meeting of ranks on several hosts that can also read their host's memory. A rank sends its header
// to the other hosts' ranks of its column, and not to all, so that a meeting is H - 1 messages a rank and one round of
// the host's ranks, instead of n - 1 messages. The .cc file begins with the protocol.
#ifndef FSDP_COLLECTIVES_NET_COLUMN_MEETING_H_
#define FSDP_COLLECTIVES_NET_COLUMN_MEETING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/host/host_collectives.h"
#include "fsdp/collectives/net/host_layout.h"
#include "fsdp/collectives/net/net_collectives.h"

namespace fsdp {

class ColumnMeeting {
 public:
  // `layout` must be regular and is copied. `net` has all its ranks, `host` the ranks of this rank's host, ascending;
  // both must outlive this object.
  ColumnMeeting(NetCollectives& net, HostCollectives& host, const HostLayout& layout);

  // Same contract as NetCollectives::Meet.
  absl::Status Meet(uint64_t sequence, const CollectiveSpec& spec);

  // True if all data of such a collective are sent along with the headers.
  bool IsSmall(const CollectiveSpec& spec) const;

  // Meets and moves the data of a small collective. If ranks disagree, nothing is written.
  absl::Status RunSmall(uint64_t sequence, const Collective& collective);

 private:
  // Steps of the protocol. ExchangeInColumn begins the collective.
  absl::Status ExchangeInColumn(uint64_t sequence, const Collective& collective, bool with_data);
  Messages HeaderMessages(std::byte* slot);
  Messages DataMessages(const Collective& collective, std::byte* slot);
  absl::Status ShareWithHost(uint64_t sequence, const CollectiveSpec& spec);

  // The bytes that a rank sends to another host, and their start in this rank's input.
  int64_t PartBytes(const CollectiveSpec& spec) const;
  const std::byte* PartFor(const Collective& collective, int host) const;
  bool GivesPart(const CollectiveSpec& spec, int rank) const;

  // The part of rank `r`, after the slots were shared.
  const std::byte* PartOf(const CollectiveSpec& spec, int r) const;
  void MoveSmall(const Collective& collective);

  int64_t HeaderBytes() const;
  std::vector<int> OtherHosts() const;

  NetCollectives& net_;
  HostCollectives& host_;
  const HostLayout layout_;
  const int here_;                 // this rank's host
  const std::vector<int> column_;  // by host
  std::vector<const std::byte*> rows_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_COLUMN_MEETING_H_
