// SPDX-License-Identifier: Apache-2.0
//
// InflatedFile: a compressed entry of a zip archive as a File that is read at any offset. Deflate has no index, so
// reading begins at the front; a few streams stay where they stopped, and a read takes the one that is nearest before
// it. Reads in about the order of the entry, from several threads, so inflate it once or twice, in the memory of the
// streams: 130 KB each. Thread-safe.
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

namespace fsdp {

// No deflate stream makes more bytes of one byte.
inline constexpr int64_t kMaxDeflateRatio = 1032;

class Inflater;

// The streams that are idle, of all entries of an archive: at most kMaxIdle, the oldest of which goes first.
class InflaterPool {
 public:
  InflaterPool();
  ~InflaterPool();

  // The idle stream of `entry` whose position is the last one not after `offset`, or null. It is the caller's until
  // Put.
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
  // claims more bytes than kMaxDeflateRatio allows. An entry without a CRC (0) has none to compare.
  static absl::StatusOr<std::unique_ptr<InflatedFile>> Open(const File& archive, ZipEntry entry, InflaterPool& pool);
  ~InflatedFile() override { pool_.Drop(entry_); }

  const std::string& path() const override { return archive_.path(); }
  absl::StatusOr<int64_t> Size() const override { return entry_.nbytes; }

  // kDataLoss when the stream is damaged, is shorter or longer than the entry says, or, with the read that reaches its
  // end, has another CRC; the CRC is compared once a stream has gone from front to end.
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override;

  // Inflates all of the entry, unless a read has reached the end.
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
