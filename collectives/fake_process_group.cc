// SPDX-License-Identifier: Apache-2.0
//
// HostProcessGroup checks arguments, keeps the order and turns calls into stream work, as for every host backend. This
// file adds only collectives without peers below it, and a Split without communication above it.
#include "fsdp/collectives/fake_process_group.h"

#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/host/blocking_collectives.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

class FakeCollectives final : public BlockingCollectives {
 public:
  FakeCollectives(int rank, int size, std::shared_ptr<Device> device)
      : rank_(rank), size_(size), device_(std::move(device)) {}

  std::string_view backend() const override { return "fake"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::shared_ptr<Device>& device() const override { return device_; }
  absl::Duration timeout() const override { return absl::InfiniteDuration(); }  // it never waits
  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override { return device_->Allocate(nbytes); }

  absl::Status Run(uint64_t, const Collective& collective) override {
    // A broken group fails as a real one does, so that error paths can be tested.
    FSDP_RETURN_IF_ERROR(given_up());
    // The own slice only: other ranks' data do not exist.
    const int64_t nbytes = collective.spec.count * SizeOf(collective.spec.dtype);
    if (collective.spec.op == CollectiveOp::kAllGather) {
      Copy(collective.input, collective.output + rank_ * nbytes, nbytes);
    } else if (collective.spec.op == CollectiveOp::kReduceScatter) {
      Copy(collective.input + rank_ * nbytes, collective.output, nbytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> AllGatherObject(uint64_t, std::string_view blob) override {
    FSDP_RETURN_IF_ERROR(given_up());
    return std::vector<std::string>(size_, std::string(blob));
  }

  // Not called: FakeProcessGroup::Split does not use the collectives.
  absl::StatusOr<std::unique_ptr<BlockingCollectives>> Split(const std::vector<int>&, const BlobGather&) override {
    return absl::UnimplementedError("the collectives of a fake group cannot be split");
  }

  void GiveUp(const absl::Status& reason) override {
    // The first reason stays, as in a real group.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (given_up_.ok()) given_up_ = reason;
  }
  void AwaitReaders() override {}
  void Depart() override {}
  int first_rank_to_give_up() const override { return given_up().ok() ? -1 : rank_; }

 private:
  // In place, both are the same memory; they never overlap otherwise (CheckAllGather, CheckReduceScatter).
  static void Copy(const std::byte* from, std::byte* to, int64_t nbytes) {
    if (from != to && nbytes > 0) std::memcpy(to, from, nbytes);
  }

  absl::Status given_up() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return given_up_;
  }

  const int rank_, size_;
  const std::shared_ptr<Device> device_;
  mutable std::mutex mutex_;
  absl::Status given_up_;  // guarded by mutex_
};

class FakeProcessGroup final : public ForwardingProcessGroup {
 public:
  explicit FakeProcessGroup(FakeGroupOptions options)
      : ForwardingProcessGroup(std::make_shared<HostProcessGroup>(
            std::make_unique<FakeCollectives>(options.rank, options.size, options.device))),
        options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override {
    if (splits_ == options_.split_sizes.size()) {
      return absl::FailedPreconditionError(absl::StrCat("split number ", splits_ + 1, " of a fake group of ",
                                                        options_.size, " ranks, color ", color, ", key ", key,
                                                        "; a fake group does not know the colors of its peers: name "
                                                        "the size of the part in FakeGroupOptions::split_sizes"));
    }
    const int size = options_.split_sizes[splits_];
    if (key < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", key, " of a split of a fake group, wanted this rank's place, at least 0"));
    }
    ++splits_;
    // The new group has no split sizes: only the sizes of this group's parts are known.
    return CreateFakeGroup({.rank = key % size, .size = size, .device = options_.device});
  }

 private:
  const FakeGroupOptions options_;
  size_t splits_ = 0;  // calls of Split so far
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateFakeGroup(FakeGroupOptions options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of a fake group of ", options.size,
                                                   " ranks, wanted at least one rank, and this one among them"));
  }
  for (const int size : options.split_sizes) {
    // A real Split into blocks of one size leaves no rank out, so the size divides the world.
    if (size >= 1 && options.size % size == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("FakeGroupOptions::split_sizes has ", size, ", wanted a divisor of ", options.size, " ranks"));
  }
  if (options.device == nullptr) options.device = CreateHostDevice();
  if (options.device->type() != DeviceType::kCpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fake group on ", options.device->name(), ", wanted a device of the host"));
  }
  return std::make_unique<FakeProcessGroup>(std::move(options));
}

}  // namespace fsdp
