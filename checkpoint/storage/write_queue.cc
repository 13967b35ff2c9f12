// SPDX-License-Identifier: Apache-2.0
//
// A direct queue has `depth` slots, each with one buffer that is allocated when it is first used:
//
//   free  --Buffer or Write-->  taken  --Write-->  in flight  --completion-->  free
//                                                   |    ^
//                                                   +----+  interrupted or short: the rest is submitted again
//
// At most one slot is taken, and at most depth - 1 are in flight (with depth 1, one), so that the caller has a block to
// fill. The first error stays in error_ and every later call returns it; completions are still awaited, since the
// kernel reads from the buffers until then.
#include "fsdp/checkpoint/storage/write_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/system_call.h"

namespace fsdp {
namespace {

class SynchronousWriteQueue final : public WriteQueue {
 public:
  explicit SynchronousWriteQueue(std::function<absl::Status(int64_t, absl::Span<const std::byte>)> write)
      : write_(std::move(write)) {}

  absl::StatusOr<std::byte*> Buffer() override {
    if (buffer_ == nullptr) buffer_ = NewAlignedBlock(kBlockBytes);
    return buffer_.get();
  }

  bool NeedsCopy(const std::byte*) const override { return false; }

  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override { return write_(offset, bytes); }

  absl::Status Drain() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  const std::function<absl::Status(int64_t, absl::Span<const std::byte>)> write_;
  AlignedBlock buffer_;
};

// A queue of direct writes, with or without io_uring. Sectors that a write fills only in part are kept until Finish.
class DirectWriteQueue final : public WriteQueue {
 public:
  DirectWriteQueue(int fd, const DirectAlignment& alignment, int depth, std::string name,
                   std::function<absl::Status(int64_t, absl::Span<const std::byte>)> write)
      : fd_(fd),
        alignment_(alignment),
        name_(std::move(name)),
        write_(std::move(write)),
        slots_(depth),
        max_in_flight_(std::max(1, depth - 1)) {}

  // Without a ring, each write is complete before Write returns.
  void OpenRing() { has_ring_ = io_uring_queue_init(static_cast<unsigned>(slots_.size()), &ring_, 0) == 0; }

  ~DirectWriteQueue() override {
    if (!has_ring_) return;
    (void)Drain();
    io_uring_queue_exit(&ring_);
  }

  absl::StatusOr<std::byte*> Buffer() override {
    FSDP_RETURN_IF_ERROR(TakeSlot());
    Slot& slot = slots_[taken_];
    if (slot.buffer == nullptr) slot.buffer = NewAlignedBlock(kBlockBytes);
    return slot.buffer.get();
  }

  bool NeedsCopy(const std::byte* bytes) const override {
    return reinterpret_cast<uintptr_t>(bytes) % alignment_.memory != 0;
  }

  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override {
    FSDP_RETURN_IF_ERROR(TakeSlot());
    const int64_t direct = DirectBytes(offset, bytes);
    const auto rest = bytes.subspan(direct);
    // The last sector of an extent, and every sector of an unaligned one, also holds bytes of other writes. Direct I/O
    // would overwrite those; the page cache merges them.
    if (!rest.empty()) kept_.push_back({offset + direct, {rest.begin(), rest.end()}});
    if (direct == 0) return absl::OkStatus();
    Slot& slot = slots_[taken_];
    const std::byte* from = bytes.data();
    if (NeedsCopy(from)) {
      if (slot.buffer == nullptr) slot.buffer = NewAlignedBlock(kBlockBytes);
      std::memcpy(slot.buffer.get(), from, direct);
      from = slot.buffer.get();
    }
    slot.offset = offset;
    slot.left = absl::MakeConstSpan(from, direct);
    // Wait for a free place in flight here, after the block is filled, not in Buffer: a device that reports completions
    // in batches would otherwise idle while the caller fills the block.
    while (in_flight_ >= max_in_flight_) AwaitOne();
    return Submit(std::exchange(taken_, -1));
  }

  absl::Status Drain() override {
    while (in_flight_ > 0) AwaitOne();
    return error_;
  }

  absl::Status Finish() override {
    for (const Kept& kept : kept_) FSDP_RETURN_IF_ERROR(write_(kept.offset, kept.bytes));
    kept_.clear();
    return error_;
  }

 private:
  // Bytes for the page cache: at most one sector of an aligned write, all of an unaligned one.
  struct Kept {
    int64_t offset;
    std::vector<std::byte> bytes;
  };

  struct Slot {
    AlignedBlock buffer;
    int64_t offset = 0;
    absl::Span<const std::byte> left;  // not written yet; empty when the slot is free
  };

  // How many leading bytes direct I/O can write: whole sectors, when the first begins at a sector.
  int64_t DirectBytes(int64_t offset, absl::Span<const std::byte> bytes) const {
    if (offset % alignment_.offset != 0) return 0;
    return static_cast<int64_t>(bytes.size()) / alignment_.offset * alignment_.offset;
  }

  // Makes taken_ a free slot, after waiting for one if necessary.
  absl::Status TakeSlot() {
    while (taken_ < 0) {
      for (size_t i = 0; i < slots_.size() && taken_ < 0; ++i) {
        if (slots_[i].left.empty()) taken_ = static_cast<int>(i);
      }
      if (taken_ < 0) AwaitOne();
    }
    return error_;
  }

  absl::Status Submit(int index) {
    Slot& slot = slots_[index];
    if (!has_ring_) {
      WriteNow(slot);
      return error_;
    }
    // Never null: the ring has an entry for each slot, and every entry is submitted before the next is taken.
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_write(entry, fd_, slot.left.data(), static_cast<unsigned>(slot.left.size()), slot.offset);
    entry->user_data = static_cast<uint64_t>(index);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN);
    if (submitted < 0) {
      slot.left = {};
      Fail(-submitted, slot.offset, 0);
      return error_;
    }
    ++in_flight_;
    return absl::OkStatus();
  }

  // Blocks until the slot is written, or has failed.
  void WriteNow(Slot& slot) {
    const size_t done = TransferAll<const std::byte>(
        slot.offset, slot.left, [this](int64_t at, auto left) { return pwrite(fd_, left.data(), left.size(), at); });
    if (done < slot.left.size()) {
      const int error = errno != 0 ? errno : EIO;
      Fail(error, slot.offset + static_cast<int64_t>(done), static_cast<int64_t>(slot.left.size() - done));
    }
    slot.left = {};
  }

  void AwaitOne() {
    io_uring_cqe* completion = nullptr;
    int waited = 0;
    do {
      waited = io_uring_wait_cqe(&ring_, &completion);
    } while (waited == -EINTR);
    if (waited < 0) {  // the ring is broken; nothing more will complete
      Fail(-waited, 0, 0);
      in_flight_ = 0;
      for (Slot& slot : slots_) slot.left = {};
      return;
    }
    const int index = static_cast<int>(completion->user_data);
    const int result = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    --in_flight_;
    Complete(index, result);
  }

  // `result` is the kernel's: bytes written, or a negative errno. A short write that ends inside a sector cannot be
  // continued by direct I/O and is an error.
  void Complete(int index, int result) {
    Slot& slot = slots_[index];
    if (result == -EINTR || result == -EAGAIN) {
      (void)Submit(index);
    } else if (result <= 0) {
      Fail(result == 0 ? EIO : -result, slot.offset, static_cast<int64_t>(slot.left.size()));
      slot.left = {};
    } else if (static_cast<size_t>(result) == slot.left.size()) {
      slot.left = {};
    } else if (result % alignment_.offset == 0) {  // short
      slot.offset += result;
      slot.left = slot.left.subspan(result);
      (void)Submit(index);
    } else {
      Fail(EIO, slot.offset, static_cast<int64_t>(slot.left.size()));
      slot.left = {};
    }
  }

  // Keeps only the first error: later ones are often its consequences.
  void Fail(int error, int64_t offset, int64_t nbytes) {
    if (!error_.ok()) return;
    error_ = absl::Status(absl::ErrnoToStatusCode(error),
                          absl::StrCat("cannot write ", nbytes, " bytes at ", offset, " of ", name_, ": ",
                                       std::strerror(error), " (errno ", error, ")"));
  }

  const int fd_;
  const DirectAlignment alignment_;
  const std::string name_;
  const std::function<absl::Status(int64_t, absl::Span<const std::byte>)> write_;
  io_uring ring_ = {};
  bool has_ring_ = false;
  std::vector<Slot> slots_;
  const int max_in_flight_;
  std::vector<Kept> kept_;
  int taken_ = -1;  // the slot of the next write
  int in_flight_ = 0;
  absl::Status error_;  // the first
};

}  // namespace

std::unique_ptr<WriteQueue> NewSynchronousWriteQueue(
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write) {
  return std::make_unique<SynchronousWriteQueue>(std::move(write));
}

std::unique_ptr<WriteQueue> NewDirectWriteQueue(
    int direct_fd, const DirectAlignment& alignment, int depth, std::string name,
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write, UringUse use) {
  auto queue = std::make_unique<DirectWriteQueue>(direct_fd, alignment, depth, std::move(name), std::move(write));
  if (use == UringUse::kIfPossible) queue->OpenRing();
  return queue;
}

std::unique_ptr<WriteQueue> WriteQueues::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<WriteQueue> queue = std::move(free_.back());
      free_.pop_back();
      return queue;
    }
  }
  return file_.NewWriteQueue(depth_);
}

void WriteQueues::Give(std::unique_ptr<WriteQueue> queue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(queue));
}

absl::Status WriteQueues::Drain() {
  for (const std::unique_ptr<WriteQueue>& queue : free_) FSDP_RETURN_IF_ERROR(queue->Drain());
  return absl::OkStatus();
}

absl::Status WriteQueues::Finish() {
  for (const std::unique_ptr<WriteQueue>& queue : free_) FSDP_RETURN_IF_ERROR(queue->Finish());
  return absl::OkStatus();
}

}  // namespace fsdp
