// SPDX-License-Identifier: Apache-2.0
//
// EntryChecksums: the CRCs of a zip archive's entries, compared while the entries are read, in whatever pieces and
// order that happens: the CRCs of pieces that meet are combined, and once an entry is whole, its CRC is known without a
// second look at its bytes. ChecksummedFile is a file that feeds them. Thread-safe.
#ifndef FSDP_CHECKPOINT_TORCH_ZIP_ENTRY_CHECKSUMS_H_
#define FSDP_CHECKPOINT_TORCH_ZIP_ENTRY_CHECKSUMS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

class EntryChecksums {
 public:
  // Bytes `range` of the file are the entry `name`, with that CRC-32. Entries do not overlap; one that is already there
  // is left as it is.
  void Expect(const std::string& name, const Interval& range, uint32_t crc);

  // `bytes` were read at `offset`. What was read before is not counted again. kDataLoss names the entry and its bytes
  // when it is whole now and its CRC another, and whenever some of it is read after that.
  absl::Status Add(int64_t offset, absl::Span<const std::byte> bytes);

  // The parts not read yet of entries that were read in part.
  std::vector<Interval> Missing() const;

  // True when each entry that was read is one of Expect's: there is something to compare.
  bool empty() const;

 private:
  struct Run {
    int64_t end = 0;
    uint32_t crc = 0;
  };
  struct Entry {
    std::string name;
    Interval range;
    uint32_t crc = 0;
    std::map<int64_t, Run> runs = {};  // what was read, by its first byte; neighbours that meet are one
    absl::Status result = absl::OkStatus();
    bool is_whole = false;
  };

  static absl::Status AddRun(Entry& entry, const Interval& range, uint32_t crc);

  mutable std::mutex mutex_;
  std::map<int64_t, Entry> entries_;  // by the first byte; guarded by mutex_
};

// `file`, with what is read from it compared.
class ChecksummedFile final : public File {
 public:
  ChecksummedFile(std::unique_ptr<File> file, std::shared_ptr<EntryChecksums> checksums)
      : file_(std::move(file)), checksums_(std::move(checksums)) {}

  const std::string& path() const override { return file_->path(); }
  absl::StatusOr<int64_t> Size() const override { return file_->Size(); }
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override;
  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override { return file_->Write(offset, bytes); }
  absl::Status Reserve(int64_t nbytes) override { return file_->Reserve(nbytes); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int depth) override { return file_->NewWriteQueue(depth); }
  absl::Status Sync() override { return file_->Sync(); }
  bool locked() const override { return file_->locked(); }

 private:
  const std::unique_ptr<File> file_;
  const std::shared_ptr<EntryChecksums> checksums_;
};

// Reads `ranges` of `file`, a piece at a time, for the sake of its checksums.
absl::Status ReadForChecksums(const File& file, const std::vector<Interval>& ranges);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_ZIP_ENTRY_CHECKSUMS_H_
