// SPDX-License-Identifier: Apache-2.0
//
// NearbyReads: a file that is only read, for formats in which a read may be as small as a tensor. Three small reads
// near each other cost one larger read, from which the following ones are copied: a model may have a million tensors of
// a few hundred bytes, and a system call for each takes longer than its bytes. Large reads, and small ones far from
// each other, go to the file unchanged.
//
//   reads    |a| |b| |c||d| |e|                    |f|
//   file     a   b   c.........................    f         d and e are copied from the read for c
#ifndef FSDP_CHECKPOINT_STORAGE_NEARBY_READS_H_
#define FSDP_CHECKPOINT_STORAGE_NEARBY_READS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// Owns the file, which must not change meanwhile: a small read may return bytes that the file had a moment earlier.
// Each thread that reads keeps one block of memory, for all such files together, until it ends. Errors as of the file.
class NearbyReads final : public File {
 public:
  // The memory of each thread.
  static constexpr int64_t kMemoryBytes = int64_t{128} << 10;

  explicit NearbyReads(std::unique_ptr<File> file);

  const std::string& path() const override { return file_->path(); }
  absl::StatusOr<int64_t> Size() const override { return file_->Size(); }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override;
  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override { return file_->Write(offset, bytes); }
  absl::Status Reserve(int64_t nbytes) override { return file_->Reserve(nbytes); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int depth) override { return file_->NewWriteQueue(depth); }
  absl::Status Sync() override { return file_->Sync(); }
  Descriptors descriptors() const override { return file_->descriptors(); }
  bool locked() const override { return file_->locked(); }

 private:
  const std::unique_ptr<File> file_;
  const uint64_t id_;  // different for every object of the process, unlike its address
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_NEARBY_READS_H_
