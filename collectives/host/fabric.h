// SPDX-License-Identifier: Apache-2.0
//
// Fabric: the access that the host collectives need to a set of ranks that can read each other's memory. One object per
// rank and group. There are two implementations: between threads an address is a pointer (local_fabric.h), between
// processes it is an offset in a shared heap (shm_fabric.h). Ranks that can only send messages need another kind of
// backend.
//
// Publish, PeerMemory and Slot are called by one thread at a time; the other functions by any thread.
#ifndef FSDP_COLLECTIVES_HOST_FABRIC_H_
#define FSDP_COLLECTIVES_HOST_FABRIC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/blob_gather.h"
#include "fsdp/collectives/host/control_block.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual std::string_view backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::shared_ptr<Device>& device() const = 0;

  virtual ControlBlock control() const = 0;

  // Rank `r`'s staging slot `parity` (0 or 1), of slot_bytes() bytes, a multiple of 64: written by `r`, read by all.
  virtual std::byte* Slot(int r, int parity) const = 0;
  virtual int64_t slot_bytes() const = 0;

  // The address under which peers reach these bytes of this rank; nullopt if they cannot reach them.
  virtual std::optional<uint64_t> Publish(const void* data, int64_t nbytes) const = 0;

  // The bytes that `peer` published, in this rank's address space.
  virtual const std::byte* PeerMemory(int peer, uint64_t address) const = 0;

  // False after the process of `peer` has ended, so that it cannot arrive any more. A system call: use it only while
  // waiting.
  virtual bool IsAlive(int peer) const = 0;

  // "pid 1234"; empty if ranks share a process. For errors.
  virtual std::string Process(int peer) const = 0;

  // True if a failing rank must wait until no peer reads its memory, because the memory may be freed under the peer:
  // between threads. A peer in another process keeps its own mapping.
  virtual bool peers_share_address_space() const = 0;

  // As ProcessGroup::Allocate.
  virtual absl::StatusOr<Buffer> Allocate(int64_t nbytes) = 0;

  // A fabric for `members`, ranks of this fabric that include this one, in the new order of ranks. Every rank of this
  // fabric calls it at the same time, each with its own set, all sets disjoint; `gather` gathers over this fabric.
  virtual absl::StatusOr<std::unique_ptr<Fabric>> Split(const std::vector<int>& members, const BlobGather& gather) = 0;
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_FABRIC_H_
