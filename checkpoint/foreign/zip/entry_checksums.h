// SPDX-License-Identifier: Apache-2.0
//
// Crc32: the CRC of zip archives, computed in parts that can be combined.
//
// EntryChecksums: compares the CRCs of a zip archive's entries while the entries are read, in any pieces and any order:
// the CRCs of adjacent pieces are combined, and once the pieces make up the entry, its CRC is known without a second
// read. ChecksummedFile is a file that passes every read to EntryChecksums.
//
//   entry   |<------------------------ 100 bytes ------------------------>|
//   runs      [0, 40) crc a        [60, 80) crc b                            reads so far
//   Add       [40, 60) crc c  ->  [0, 80) Combine(Combine(a, c, 20), b, 20)  one run; compared once it is [0, 100)
#ifndef FSDP_CHECKPOINT_FOREIGN_ZIP_ENTRY_CHECKSUMS_H_
#define FSDP_CHECKPOINT_FOREIGN_ZIP_ENTRY_CHECKSUMS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// The CRC-32 of zip and gzip (polynomial 0x04C11DB7, reflected). The CRC of no bytes is 0.
uint32_t Crc32(absl::Span<const std::byte> bytes);

// The CRC of two consecutive runs of bytes, from the CRC of each and the length of the second. Time is logarithmic in
// the length.
uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes);

// A table of entries that exists anyway, since a large model has a million of them.
class EntryTable {
 public:
  virtual ~EntryTable() = default;

  virtual size_t size() const = 0;
  // `range`, `crc` and `name` of entry `i`, as for EntryChecksums::Expect.
  virtual Interval range(size_t i) const = 0;
  virtual uint32_t crc(size_t i) const = 0;
  virtual std::string name(size_t i) const = 0;
  // False for an entry without a CRC.
  virtual bool has_crc(size_t i) const = 0;
};

// Thread-safe. CRCs are computed outside the lock, so readers do not wait for each other's bytes.
class EntryChecksums {
 public:
  // Expects the entries of `table`, which must outlive this and not change, instead of entries added by Expect. Call it
  // once, before the first Add.
  void ExpectTable(const EntryTable& table);

  // Bytes `range` of the file are the entry `name`, with that CRC-32. Entries must not overlap; an entry that begins at
  // the same byte as a known one is ignored, so a caller may report an archive again.
  void Expect(const std::string& name, const Interval& range, uint32_t crc);

  // Reports that `bytes` were read at byte `offset` of the file; bytes outside all entries are ignored. A read that
  // overlaps an earlier one adds nothing. If this read completes an entry whose CRC is not the expected one, returns
  // kDataLoss with the entry's name and bytes, as does every later read of that entry.
  absl::Status Add(int64_t offset, absl::Span<const std::byte> bytes);

  // The ranges of the file that complete the partly read entries, sorted. Entries without any read are left out: no
  // result depends on their bytes.
  std::vector<Interval> Missing() const;

  // True until the first Expect: no entry has a CRC to compare.
  bool empty() const;

 private:
  // Bytes that were read, from the run's key in Runs to `end`, and their CRC.
  struct Run {
    int64_t end = 0;
    uint32_t crc = 0;
  };
  // By the first byte of each run; adjacent runs are merged into one.
  using Runs = std::map<int64_t, Run>;

  struct Entry {
    int64_t end = 0;
    uint32_t expected = 0;
    std::string name;
  };

  // An entry, from entries_ or table_.
  struct Found {
    Interval range;
    uint32_t expected = 0;
  };

  // The first entry that ends after byte `at` of the file; nullopt if there is no such entry. Requires mutex_.
  std::optional<Found> FindAfter(int64_t at) const;
  // The name of the entry that begins there. Requires mutex_, as do the next two.
  std::string NameOf(int64_t begin) const;
  // True when all of its bytes were read.
  bool IsWhole(const Found& entry) const;
  // The index in order_ of the first entry of table_ that does not begin before byte `begin`.
  size_t PlaceInTable(int64_t begin) const;

  // The result of comparing an entry whose bytes were all read. Requires mutex_.
  absl::Status ResultOf(const Found& entry) const;

  // Adds bytes `range` with that CRC to the runs of the entry, and compares once the entry is complete. Requires
  // mutex_.
  absl::Status AddRun(const Found& entry, const Interval& range, uint32_t crc);

  mutable std::mutex mutex_;
  // All guarded by mutex_; maps are keyed by the first byte of an entry. runs_ has the partly read entries: few at any
  // time. whole_ has the completely read ones, and wrong_ the CRCs of damaged ones.
  absl::btree_map<int64_t, Entry> entries_;
  const EntryTable* table_ = nullptr;
  std::vector<uint32_t> order_;  // entries of table_ with a CRC, by their first byte
  absl::flat_hash_map<int64_t, Runs> runs_;
  absl::btree_set<int64_t> whole_;    // subset of entries_
  std::vector<bool> whole_in_table_;  // by index in order_
  absl::flat_hash_map<int64_t, uint32_t> wrong_;
};

// `file`, with every read reported to `checksums`: a read fails when it completes an entry whose CRC is wrong. Owns the
// file. The checksums are shared with the source, which reads the missing ranges, and outlive a file that is reopened.
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

// Reads `ranges` of `file`, a ChecksummedFile, in pieces of 1 MiB and drops the bytes: only their CRCs are needed.
// Stops at the first error.
absl::Status ReadForChecksums(const File& file, const std::vector<Interval>& ranges);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_ENTRY_CHECKSUMS_H_
