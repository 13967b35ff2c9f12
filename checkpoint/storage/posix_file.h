// SPDX-License-Identifier: Apache-2.0
//
// PosixFile: File on the system calls of Linux. Large transfers are direct if the file system supports that: they avoid
// the page cache, which costs a copy and, on a virtual machine, fresh pages. Bytes that are already in the cache are
// copied from it. Everything else is pread and pwrite.
#ifndef FSDP_CHECKPOINT_STORAGE_POSIX_FILE_H_
#define FSDP_CHECKPOINT_STORAGE_POSIX_FILE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {

// "cannot fsync PATH: No space left on device (errno 28)", from errno.
absl::Status ErrnoStatus(const std::string& operation, const std::string& path);

class PosixFile final : public File {
 public:
  enum class Lock : uint8_t { kNone, kHeld };

  // Takes ownership of `fd`, which holds a flock if `lock` is kHeld.
  PosixFile(int fd, std::string path, Lock lock = Lock::kNone) : fd_(fd), path_(std::move(path)), lock_(lock) {}
  ~PosixFile() override;

  const std::string& path() const override { return path_; }
  bool locked() const override { return lock_ == Lock::kHeld; }
  Descriptors descriptors() const override;
  absl::StatusOr<int64_t> Size() const override;
  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override;
  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override;
  absl::Status Reserve(int64_t nbytes) override;
  absl::Status Sync() override;
  std::unique_ptr<WriteQueue> NewWriteQueue(int depth) override;

 private:
  // A second descriptor of the same file for direct I/O, opened by the first call; -1 when the file does not support
  // direct I/O.
  int DirectFd() const;

  // These read as many leading bytes of `out` as they can, and advance `offset` and `out`: first from the page cache,
  // then by direct I/O, into `out` itself if it is aligned, else through an aligned block.
  absl::Status ReadLarge(int64_t& offset, absl::Span<std::byte>& out) const;
  absl::Status ReadInPlace(int direct, int64_t& offset, absl::Span<std::byte>& out) const;
  absl::Status ReadThroughBlock(int direct, int64_t& offset, absl::Span<std::byte>& out) const;

  // Returns the number of bytes of one direct read; 0 at the end of the file, or if the kernel refuses such a read.
  absl::StatusOr<int64_t> ReadDirect(int direct, int64_t offset, absl::Span<std::byte> out) const;

  const int fd_;
  const std::string path_;
  const Lock lock_;
  mutable std::once_flag direct_once_;
  mutable int direct_fd_ = -1;
  mutable DirectAlignment alignment_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_POSIX_FILE_H_
