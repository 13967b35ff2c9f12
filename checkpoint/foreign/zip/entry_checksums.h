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
#include "fsdp/tensor/interval.h"

namespace fsdp {

// The CRC-32 of zip and gzip (polynomial 0x04C11DB7, reflected). Of no bytes: 0.
uint32_t Crc32(absl::Span<const std::byte> bytes);

// The CRC of two runs of bytes, one after the other, from the CRC of each and the length of the second. Time is
// logarithmic in the length.
uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes);

// Entries that somebody has a table of anyway, since a large model has a million.
class EntryTable {
 public:
  virtual ~EntryTable() = default;

  virtual size_t size() const = 0;
  // Of entry `i`, as for EntryChecksums::Expect.
  virtual Interval range(size_t i) const = 0;
  virtual uint32_t crc(size_t i) const = 0;
  virtual std::string name(size_t i) const = 0;
  // False for an entry without a CRC.
  virtual bool has_crc(size_t i) const = 0;
};

// Thread-safe. CRCs are computed outside of the lock, so readers do not wait for each other's bytes.
class EntryChecksums {
 public:
  // The entries of `table`, which must outlive this and not change, instead of any that are expected one by one. Call
  // it once, before the first Add.
  void ExpectTable(const EntryTable& table);

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
  // Bytes that were read, from the key of Runs to `end`, and their CRC.
  struct Run {
    int64_t end = 0;
    uint32_t crc = 0;
  };
  // By the first byte of each run; neighbours that meet are one run.
  using Runs = std::map<int64_t, Run>;

  struct Entry {
    int64_t end = 0;
    uint32_t expected = 0;
    std::string name;
  };

  // An entry, of either kind.
  struct Found {
    Interval range;
    uint32_t expected = 0;
  };

  // The first entry that ends behind byte `at` of the file; nullopt where there is none. Requires mutex_.
  std::optional<Found> FindAfter(int64_t at) const;
  // Of the entry that begins there. Requires mutex_, as the two after it.
  std::string NameOf(int64_t begin) const;
  // All of its bytes were read.
  bool IsWhole(const Found& entry) const;
  // The place in order_ of the first entry of table_ that does not begin before byte `begin`.
  size_t PlaceInTable(int64_t begin) const;

  // The result of the comparison of an entry whose bytes were all read. Requires mutex_.
  absl::Status ResultOf(const Found& entry) const;

  // Adds bytes `range` with that CRC to the runs of the entry, and compares once they are whole. Requires mutex_.
  absl::Status AddRun(const Found& entry, const Interval& range, uint32_t crc);

  mutable std::mutex mutex_;
  // All guarded by mutex_, and by the first byte of an entry. runs_ has the entries of which some bytes were read, but
  // not all: few at any time. whole_ has those that were read, and wrong_ the CRCs of those that are damaged.
  absl::btree_map<int64_t, Entry> entries_;
  const EntryTable* table_ = nullptr;
  std::vector<uint32_t> order_;  // entries of table_ with a CRC, by their first byte
  absl::flat_hash_map<int64_t, Runs> runs_;
  absl::btree_set<int64_t> whole_;    // of entries_
  std::vector<bool> whole_in_table_;  // by place in order_
  absl::flat_hash_map<int64_t, uint32_t> wrong_;
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

#endif  // FSDP_CHECKPOINT_FOREIGN_ZIP_ENTRY_CHECKSUMS_H_
