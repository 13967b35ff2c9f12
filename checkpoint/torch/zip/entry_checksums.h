// SPDX-License-Identifier: Apache-2.0
//
// Crc32: the CRC of zip archives, computed in parts that are combined.
//
// EntryChecksums: the CRCs of a zip archive's entries, compared while the entries are read, in any pieces and any
// order: the CRCs of pieces that meet are combined, and once the pieces make up the entry, its CRC is known without a
// second read. ChecksummedFile is a file that feeds every read to them.
//
//   entry   |<------------------------ 100 bytes ------------------------>|
//   runs      [0, 40) crc a        [60, 80) crc b                            reads so far
//   Add       [40, 60) crc c  ->  [0, 80) Combine(Combine(a, c, 20), b, 20)  one run; compared once it is [0, 100)
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

// The CRC-32 of zip and gzip (polynomial 0x04C11DB7, reflected). Of no bytes: 0.
uint32_t Crc32(absl::Span<const std::byte> bytes);

// The CRC of two runs of bytes, one after the other, from the CRC of each and the length of the second. Time is
// logarithmic in the length.
uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes);

// Thread-safe. CRCs are computed outside of the lock, so readers do not wait for each other's bytes.
class EntryChecksums {
 public:
  // Bytes `range` of the file are the entry `name`, with that CRC-32. Entries must not overlap; an entry that begins
  // where a known one does is ignored, so a caller may report an archive again.
  void Expect(const std::string& name, const Interval& range, uint32_t crc);

  // `bytes` were read at byte `offset` of the file; bytes outside of all entries are ignored. A read that overlaps an
  // earlier one adds nothing. kDataLoss names the entry and its bytes if this read completes it and its CRC is another
  // than the expected one, and for every read of that entry from then on.
  absl::Status Add(int64_t offset, absl::Span<const std::byte> bytes);

  // The ranges of the file that complete the entries that were read in part, sorted. Entries that nothing was read of
  // are left out: no result depends on their bytes.
  std::vector<Interval> Missing() const;

  // True until the first Expect: no entry has a CRC to compare.
  bool empty() const;

 private:
  // Bytes that were read, from the key of Entry::runs to `end`, and their CRC.
  struct Run {
    int64_t end = 0;
    uint32_t crc = 0;
  };
  struct Entry {
    // As in Expect; it begins at its key in entries_.
    std::string name;
    int64_t end = 0;
    uint32_t expected = 0;

    // The CRC of the whole entry, once the runs make it up.
    uint32_t actual = 0;
    bool is_whole = false;

    // The bytes that were read, by the first byte of each run; neighbours that meet are one run. Null where nothing was
    // read, or everything: a large model has many entries, and few of them are being read at any time.
    std::unique_ptr<std::map<int64_t, Run>> runs = nullptr;
  };

  // The result of the comparison of an entry that begins at `begin`; OK while it is not whole.
  static absl::Status ResultOf(int64_t begin, const Entry& entry);

  // Adds bytes `range` with that CRC to the runs of `entry`, which begins at `begin`, and compares once they are whole.
  // Requires mutex_.
  static absl::Status AddRun(int64_t begin, Entry& entry, const Interval& range, uint32_t crc);

  mutable std::mutex mutex_;
  std::map<int64_t, Entry> entries_;  // by the first byte; guarded by mutex_
};

// `file`, with every read added to `checksums`: a read fails when it completes an entry whose CRC is wrong. Owns the
// file; the checksums are shared with the source that asks for what is missing, and outlive a file that is reopened.
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

// Reads `ranges` of `file`, a ChecksummedFile, in pieces of 1 MiB and drops the bytes: only their CRCs are wanted. The
// first error ends it.
absl::Status ReadForChecksums(const File& file, const std::vector<Interval>& ranges);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_ZIP_ENTRY_CHECKSUMS_H_
