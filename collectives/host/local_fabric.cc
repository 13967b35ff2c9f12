// SPDX-License-Identifier: Apache-2.0
//
// Split does not exchange messages: the ranks of a subgroup find its state in a map of the parent's state, under the
// list of members. The first rank that asks creates it, the last one removes it from the map.
#include "fsdp/collectives/host/local_fabric.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

constexpr int64_t kSlotBytes = 256 << 10;

// The memory that the ranks of one group share. Slots are 2 * 256 KiB per rank, but pages that no collective uses are
// never touched and take no memory.
class SharedState {
 public:
  explicit SharedState(int size)
      : size_(size),
        memory_(std::aligned_alloc(64, static_cast<size_t>(ControlBlock::BytesFor(size) + size * 2 * kSlotBytes)),
                &std::free),
        control_(ControlBlock::Format(memory_.get(), size)) {}

  int size() const { return size_; }
  ControlBlock control() const { return control_; }
  std::byte* Slot(int r, int parity) const {
    return static_cast<std::byte*>(memory_.get()) + ControlBlock::BytesFor(size_) + (2 * r + parity) * kSlotBytes;
  }

  // The state of the subgroup of these ranks: created for the first member that asks, and removed from the map after
  // the last.
  std::shared_ptr<SharedState> Subgroup(const std::vector<int>& members) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Pending& pending = pending_[members];
    if (pending.state == nullptr) {
      pending.state = std::make_shared<SharedState>(static_cast<int>(members.size()));
    }
    std::shared_ptr<SharedState> state = pending.state;
    // A later split with the same members must get a new state, so the entry does not outlive this one.
    if (++pending.taken == state->size()) {
      pending_.erase(members);
    }
    return state;
  }

 private:
  struct Pending {
    std::shared_ptr<SharedState> state;
    int taken = 0;
  };

  const int size_;
  const std::unique_ptr<void, decltype(&std::free)> memory_;
  const ControlBlock control_;
  std::mutex mutex_;
  std::map<std::vector<int>, Pending> pending_;  // subgroups that not all members have yet; guarded by mutex_
};

class LocalFabric final : public Fabric {
 public:
  LocalFabric(std::shared_ptr<SharedState> shared, int rank, std::shared_ptr<Device> device)
      : shared_(std::move(shared)), rank_(rank), device_(std::move(device)) {}

  std::string_view backend() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return shared_->size(); }
  const std::shared_ptr<Device>& device() const override { return device_; }
  ControlBlock control() const override { return shared_->control(); }
  std::byte* Slot(int r, int parity) const override { return shared_->Slot(r, parity); }
  int64_t slot_bytes() const override { return kSlotBytes; }

  // Threads share one address space: any memory can be published.
  std::optional<uint64_t> Publish(const void* data, int64_t) const override { return reinterpret_cast<uint64_t>(data); }
  const std::byte* PeerMemory(int, uint64_t address) const override {
    return reinterpret_cast<const std::byte*>(address);
  }

  bool IsAlive(int) const override { return true; }
  std::string Process(int) const override { return ""; }
  bool peers_share_address_space() const override { return true; }

  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override {
    FSDP_ASSIGN_OR_RETURN(Buffer buffer, device_->Allocate(nbytes));
    // Touched here, so that the pages are not faulted in inside a collective.
    if (device_->type() == DeviceType::kCpu && nbytes > 0) {
      std::memset(buffer.data(), 0, static_cast<size_t>(nbytes));
    }
    return buffer;
  }

  absl::StatusOr<std::unique_ptr<Fabric>> Split(const std::vector<int>& members, const BlobGather&) override {
    const auto mine = std::find(members.begin(), members.end(), rank_);
    return std::make_unique<LocalFabric>(shared_->Subgroup(members), static_cast<int>(mine - members.begin()), device_);
  }

 private:
  const std::shared_ptr<SharedState> shared_;
  const int rank_;
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::vector<std::unique_ptr<Fabric>> CreateLocalFabrics(const std::vector<std::shared_ptr<Device>>& devices) {
  const int size = static_cast<int>(devices.size());
  const auto shared = std::make_shared<SharedState>(size);
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (int r = 0; r < size; ++r) {
    fabrics.push_back(std::make_unique<LocalFabric>(shared, r, devices[r]));
  }
  return fabrics;
}

}  // namespace fsdp
