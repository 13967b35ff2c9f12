// SPDX-License-Identifier: Apache-2.0
//
// How ranks come to share memory, each step on every rank:
//   1. Make a heap, and as the group's first rank also its control memory.
//   2. Gather each rank's offer: process number, descriptors, sizes, and a random number that is also in the heap's
//      first page.
//   3. Map the others' memory through /proc/<pid>/fd/<n>, compare the random number, which fails if the process number
//      now belongs to another process, and open a pidfd of each process. No rank can end unnoticed before that: all
//      wait in 4.
//   4. Gather whether step 3 succeeded on all ranks. If it failed on one, all fail. Afterwards no rank needs another
//      one's descriptors.
// A subgroup keeps the heaps and repeats the steps with control memory only.
#include "fsdp/collectives/host/shm_fabric.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/process_handle.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/host/shared_heap.h"
#include "fsdp/collectives/host/shared_memory.h"

namespace fsdp {
namespace {

constexpr int64_t kSlotBytes = 256 << 10;

int64_t GroupBytes(int size) { return ControlBlock::BytesFor(size) + size * 2 * kSlotBytes; }

// Blobs are these structs' bytes: ranks of one host have one byte order, and one build.
struct MemoryOffer {
  int32_t pid = 0;
  int32_t fd = -1;
  int64_t nbytes = 0;
};

struct HeapOffer {
  MemoryOffer heap;
  uint64_t nonce = 0;
};

template <typename T>
std::string ToBlob(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
absl::StatusOr<T> FromBlob(std::string_view blob, int rank) {
  T value;
  if (blob.size() != sizeof(value)) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " offers ", blob.size(), " bytes, wanted ",
                                                      sizeof(value), ": is it another version of this program?"));
  }
  std::memcpy(&value, blob.data(), sizeof(value));
  return value;
}

// The process and the memory of a rank of the job, as this rank sees them. Shared by all groups of this rank.
struct Peer {
  ProcessHandle process;
  SharedMemory heap;  // read-only
};

struct Peers {
  std::shared_ptr<SharedHeap> own;
  std::vector<Peer> all;  // by rank of the job
};

class ShmFabric final : public Fabric {
 public:
  // `members`: the group's ranks, as indices into peers->all; this one is members[rank].
  ShmFabric(std::shared_ptr<const Peers> peers, std::vector<int> members, int rank, std::shared_ptr<Device> device)
      : peers_(std::move(peers)), members_(std::move(members)), rank_(rank), device_(std::move(device)) {}

  // Makes or maps the group's memory, with the other members; every rank of `gather` calls it. `creator` is the rank of
  // `gather` that is this group's rank 0.
  absl::Status ShareGroupMemory(int creator, const BlobGather& gather);

  std::string_view backend() const override { return "shm"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::shared_ptr<Device>& device() const override { return device_; }

  ControlBlock control() const override { return ControlBlock(group_->data()); }
  std::byte* Slot(int r, int parity) const override {
    return group_->data() + ControlBlock::BytesFor(size()) + (2 * r + parity) * kSlotBytes;
  }
  int64_t slot_bytes() const override { return kSlotBytes; }

  std::optional<uint64_t> Publish(const void* data, int64_t nbytes) const override {
    return peers_->own->OffsetOf(data, nbytes);
  }
  const std::byte* PeerMemory(int peer, uint64_t address) const override { return Of(peer).heap.data() + address; }

  bool IsAlive(int peer) const override { return Of(peer).process.IsAlive(); }
  std::string Process(int peer) const override { return absl::StrCat("pid ", Of(peer).process.pid()); }
  bool peers_share_address_space() const override { return false; }

  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return peers_->own->Allocate(nbytes); }
  absl::StatusOr<std::unique_ptr<Fabric>> Split(const std::vector<int>& members, const BlobGather& gather) override;

 private:
  const Peer& Of(int r) const { return peers_->all[members_[r]]; }

  const std::shared_ptr<const Peers> peers_;
  const std::vector<int> members_;
  const int rank_;
  const std::shared_ptr<Device> device_;
  std::optional<SharedMemory> group_;
};

absl::StatusOr<SharedMemory> CreateGroupMemory(int size) {
  FSDP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create("fsdp-group", GroupBytes(size)));
  FSDP_RETURN_IF_ERROR(memory.Commit(0, memory.nbytes()));
  // After Commit: formatting touches the pages, which would raise SIGBUS if they could not be backed.
  ControlBlock::Format(memory.data(), size);
  return memory;
}

absl::StatusOr<SharedMemory> MapGroupMemory(const std::string& blob, int creator, int size) {
  FSDP_ASSIGN_OR_RETURN(const MemoryOffer offer, FromBlob<MemoryOffer>(blob, creator));
  if (offer.nbytes != GroupBytes(size)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", creator, " offers ", offer.nbytes, " bytes of group memory, wanted ", GroupBytes(size)));
  }
  return SharedMemory::OpenReadWrite(offer.pid, offer.fd, offer.nbytes);
}

absl::Status ShmFabric::ShareGroupMemory(int creator, const BlobGather& gather) {
  absl::StatusOr<SharedMemory> memory = absl::UnknownError("not mapped yet");
  MemoryOffer offer;
  if (rank_ == 0) {
    memory = CreateGroupMemory(size());
    if (memory.ok()) {
      offer = {.pid = getpid(), .fd = memory->fd(), .nbytes = memory->nbytes()};
    }
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> offers, gather(ToBlob(offer)));
  if (rank_ != 0) {
    memory = MapGroupMemory(offers[creator], creator, size());
  }
  FSDP_RETURN_IF_ERROR(AllReduceStatus(gather, memory.status()));
  group_.emplace(*std::move(memory));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Fabric>> ShmFabric::Split(const std::vector<int>& members, const BlobGather& gather) {
  const auto mine = std::find(members.begin(), members.end(), rank_);
  std::vector<int> of_job;
  for (const int member : members) {
    of_job.push_back(members_[member]);
  }
  auto fabric =
      std::make_unique<ShmFabric>(peers_, std::move(of_job), static_cast<int>(mine - members.begin()), device_);
  FSDP_RETURN_IF_ERROR(fabric->ShareGroupMemory(members[0], gather));
  return fabric;
}

// Puts the random number at the start of the heap.
absl::StatusOr<HeapOffer> OfferHeap(const SharedHeap& heap, Buffer& first_page) {
  HeapOffer offer = {.heap = {.pid = getpid(), .fd = heap.memory().fd(), .nbytes = heap.memory().nbytes()}};
  if (getrandom(&offer.nonce, sizeof(offer.nonce), 0) != sizeof(offer.nonce)) {
    return absl::InternalError("no random numbers");
  }
  std::memcpy(first_page.data(), &offer.nonce, sizeof(offer.nonce));
  return offer;
}

absl::StatusOr<Peer> MapPeer(int rank, const std::string& blob) {
  FSDP_ASSIGN_OR_RETURN(const HeapOffer offer, FromBlob<HeapOffer>(blob, rank));
  // Opened before the memory: if the process is replaced in between, the random number does not match.
  FSDP_ASSIGN_OR_RETURN(ProcessHandle process, ProcessHandle::Open(offer.heap.pid));
  FSDP_ASSIGN_OR_RETURN(SharedMemory heap,
                        SharedMemory::OpenReadOnly(offer.heap.pid, offer.heap.fd, offer.heap.nbytes));
  if (std::memcmp(heap.data(), &offer.nonce, sizeof(offer.nonce)) != 0) {
    return absl::UnavailableError(absl::StrCat("process ", offer.heap.pid, " is not rank ", rank));
  }
  return Peer{.process = std::move(process), .heap = std::move(heap)};
}

absl::Status MapPeers(const std::vector<std::string>& blobs, Peers& peers) {
  for (size_t r = 0; r < blobs.size(); ++r) {
    FSDP_ASSIGN_OR_RETURN(Peer peer, MapPeer(static_cast<int>(r), blobs[r]));
    peers.all.push_back(std::move(peer));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> CreateShmFabric(int rank, int size, std::shared_ptr<Device> device,
                                                        const BlobGather& gather) {
  auto peers = std::make_shared<Peers>();
  FSDP_ASSIGN_OR_RETURN(peers->own, SharedHeap::Create(device));
  FSDP_ASSIGN_OR_RETURN(Buffer first_page, peers->own->Allocate(sizeof(uint64_t)));
  FSDP_ASSIGN_OR_RETURN(const HeapOffer offer, OfferHeap(*peers->own, first_page));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, gather(ToBlob(offer)));
  FSDP_RETURN_IF_ERROR(AllReduceStatus(gather, MapPeers(blobs, *peers)));
  std::vector<int> members(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    members[r] = r;
  }
  auto fabric = std::make_unique<ShmFabric>(std::move(peers), std::move(members), rank, std::move(device));
  FSDP_RETURN_IF_ERROR(fabric->ShareGroupMemory(0, gather));
  return fabric;
}

}  // namespace fsdp
