// SPDX-License-Identifier: Apache-2.0
//
// InflatedFile: a compressed entry of a zip archive as a File that can be read at any offset. Deflate has no index, so
// reading starts at the beginning; a few streams stay at the position that they have reached, and a read uses the
// nearest one before it. Reads in about the order of the entry, from several threads, therefore inflate it only once or
// twice. Memory: 130 KB for each stream. Thread-safe.
#ifndef FSDP_CHECKPOINT_FOREIGN_NPZ_INFLATED_FILE_H_
#define FSDP_CHECKPOINT_FOREIGN_NPZ_INFLATED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fsdp/checkpoint/foreign/zip/zip_directory.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// The largest number of bytes that a deflate stream can produce per compressed byte.
inline constexpr int64_t kMaxDeflateRatio = 1032;

class Inflater;

// The idle streams of all entries of an archive: at most kMaxIdle; the oldest is dropped first.
class InflaterPool {
 public:
  InflaterPool();
  ~InflaterPool();

  // Returns the idle stream of `entry` whose position is the last one not after `offset`, or null. The caller owns it
  // until Put.
  std::unique_ptr<Inflater> Take(const ZipEntry& entry, int64_t offset);
  void Put(std::unique_ptr<Inflater> inflater);

  // Ends the idle streams of `entry`, which is about to be destroyed.
  void Drop(const ZipEntry& entry);

 private:
  static constexpr size_t kMaxIdle = 16;

  std::mutex mutex_;
  std::list<std::unique_ptr<Inflater>> idle_;  // guarded by mutex_; the oldest first
};

class InflatedFile final : public File {
 public:
  // `archive` and `pool` must outlive it. kInvalidArgument for another method than deflate; kDataLoss when the entry
  // claims more bytes than kMaxDeflateRatio allows. An entry with CRC 0 has no CRC to compare.
  static absl::StatusOr<std::unique_ptr<InflatedFile>> Open(const File& archive, ZipEntry entry, InflaterPool& pool);
  ~InflatedFile() override { pool_.Drop(entry_); }

  const std::string& path() const override { return archive_.path(); }
  absl::StatusOr<int64_t> Size() const override { return entry_.nbytes; }

  // kDataLoss when the stream is damaged, is shorter or longer than the entry states, or, in the read that reaches its
  // end, has another CRC. The CRC is compared once a stream has been inflated from the first to the last byte.
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override;

  // Inflates the whole entry, unless a read has already reached its end.
  absl::Status VerifyAll() const;

  absl::Status Write(int64_t, absl::Span<const std::byte>) override { return ReadOnly(); }
  absl::Status Reserve(int64_t) override { return ReadOnly(); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int) override { return nullptr; }
  absl::Status Sync() override { return ReadOnly(); }
  bool locked() const override { return false; }

 private:
  InflatedFile(const File& archive, ZipEntry entry, InflaterPool& pool)
      : archive_(archive), entry_(std::move(entry)), pool_(pool) {}

  static absl::Status ReadOnly() { return absl::PermissionDeniedError("a compressed entry is for reading"); }

  const File& archive_;
  const ZipEntry entry_;
  InflaterPool& pool_;
  mutable std::mutex mutex_;
  mutable bool is_verified_ = false;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_NPZ_INFLATED_FILE_H_
