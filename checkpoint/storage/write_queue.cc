// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/write_queue.h"

#include <utility>

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

}  // namespace

std::unique_ptr<WriteQueue> NewSynchronousWriteQueue(
    std::function<absl::Status(int64_t offset, absl::Span<const std::byte> bytes)> write) {
  return std::make_unique<SynchronousWriteQueue>(std::move(write));
}

}  // namespace fsdp
