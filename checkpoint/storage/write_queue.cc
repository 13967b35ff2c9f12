// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/write_queue.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace fsdp {
namespace {

constexpr int64_t kAlignment = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t nbytes, int64_t unit) { return (nbytes + unit - 1) / unit * unit; }

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

}  // namespace

void FreeAligned::operator()(std::byte* memory) const { std::free(memory); }

AlignedBlock NewAlignedBlock(int64_t nbytes) {
  const int64_t alignment = nbytes < kHugePageBytes ? kAlignment : kHugePageBytes;
  void* const memory = std::aligned_alloc(alignment, RoundUp(nbytes, kAlignment));
  Check(memory != nullptr, "out of memory for a block");
  // A system without huge pages says no, and all is as well, only slower.
  if (nbytes >= kHugePageBytes) (void)madvise(memory, nbytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return AlignedBlock(static_cast<std::byte*>(memory));
}

std::unique_ptr<WriteQueue> NewSynchronousWriteQueue(
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write) {
  return std::make_unique<SynchronousWriteQueue>(std::move(write));
}

}  // namespace fsdp
