// SPDX-License-Identifier: Apache-2.0
//
// SocketWire: plain sockets on the link between two hosts, as a reference for collectives. The first ranks of the
// group's first two hosts have a TCP connection for each direction and one thread each that polls. No collective can be
// faster on the same link; iperf3 measures the same.
#ifndef FSDP_COLLECTIVES_CONFORMANCE_SOCKET_WIRE_H_
#define FSDP_COLLECTIVES_CONFORMANCE_SOCKET_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/collectives/group/collective.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/net/host_layout.h"

namespace fsdp {

// The bytes that the busier direction of a host's link carries for a collective of S = `bytes` of the larger buffer on
// the route of backend "net" (docs/collectives.md). `layout` must be regular. A barrier carries nothing.
double LinkBytes(CollectiveOp op, DType dtype, double bytes, const HostLayout& layout);

class SocketWire {
 public:
  // Every rank calls it. `master_addr`: an address of rank 0 by which the other hosts reach it; it selects the network
  // of the wire. kInvalidArgument, on every rank, unless the ranks are on several hosts, equally many on each and
  // consecutive.
  static absl::StatusOr<std::unique_ptr<SocketWire>> Create(ProcessGroup& group, HostLayout layout,
                                                            const std::string& master_addr);

  const HostLayout& layout() const { return layout_; }

  // Every rank calls both of these; they return immediately on ranks without a connection. kUnavailable if the other
  // end is gone.

  // Sends `nbytes` and receives as many, at the same time. The memory is used repeatedly if it is smaller.
  absl::Status Exchange(absl::Span<char> source, absl::Span<char> destination, int64_t nbytes);

  // A message there and one back, of the size of `memory`.
  absl::Status PingPong(absl::Span<char> memory);

 private:
  SocketWire(HostLayout layout, int rank) : layout_(std::move(layout)), rank_(rank) {}
  // The ends: the first ranks of hosts 0 and 1.
  int end(int host) const { return layout_.ranks_on(host).front(); }
  bool is_end() const { return rank_ == end(0) || rank_ == end(1); }
  absl::Status Accept(int listener);
  absl::Status Connect(const std::string& master_addr, int port);

  const HostLayout layout_;
  const int rank_;
  FileDescriptor out_;  // both empty on ranks that are not an end
  FileDescriptor in_;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CONFORMANCE_SOCKET_WIRE_H_
