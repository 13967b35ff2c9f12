// SPDX-License-Identifier: Apache-2.0
//
// A file has two descriptors: fd_, through the page cache, and one with O_DIRECT, opened when it is first needed. A
// large read copies cached bytes, then reads whole pages by direct I/O, then the rest through the cache; a small one
// uses only the cache. Other formats place tensors at any offset, so most of their reads begin within a page: these go
// through a block of our own, since a copy costs less than allocating pages of the cache for them. Direct I/O is only
// an optimisation: every case in which the kernel refuses it (no support, the end of the file) is left to the loop
// around pread that follows.
#include "fsdp/checkpoint/storage/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/streaming_copy.h"
#include "fsdp/checkpoint/storage/aligned_block.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/cached_pages.h"
#include "fsdp/checkpoint/storage/system_call.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// Smaller transfers do not justify another system call.
constexpr size_t kLargeBytes = 256 * 1024;

// The alignment that direct I/O of `fd` requires; kernels before 6.1 do not report it. The offset is never less than a
// page, though sectors would suffice: a page that is written both ways at the same time cannot be dropped from the
// cache, for which the kernel then fails the fsync.
DirectAlignment AlignmentOf(int fd) {
  struct statx info;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_mem_align == 0 || info.stx_dio_offset_align == 0) return {};
    return {info.stx_dio_mem_align, std::max<int64_t>(info.stx_dio_offset_align, kPageBytes)};
  }
  return {kPageBytes, kPageBytes};
}

}  // namespace

absl::Status ErrnoStatus(const std::string& operation, const std::string& path) {
  const int error = errno;
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  // Abseil also takes errors of a device, ENODEV and ENXIO, for kNotFound: then a disk that is gone would look empty.
  if (code == absl::StatusCode::kNotFound && error != ENOENT) code = absl::StatusCode::kUnknown;
  return absl::Status(
      code, absl::StrCat("cannot ", operation, " ", path, ": ", std::strerror(error), " (errno ", error, ")"));
}

PosixFile::~PosixFile() {
  if (direct_fd_ >= 0) close(direct_fd_);
  close(fd_);
}

absl::StatusOr<int64_t> PosixFile::Size() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return ErrnoStatus("stat", path_);
  return info.st_size;
}

int PosixFile::DirectFd() const {
  std::call_once(direct_once_, [this] {
    const int access = fcntl(fd_, F_GETFL) & O_ACCMODE;
    // By descriptor, not by path: another file may have the path by now.
    const std::string path = absl::StrCat("/proc/self/fd/", fd_);
    direct_fd_ = RetryInterrupted([&] { return open(path.c_str(), access | O_DIRECT | O_CLOEXEC); });
    if (direct_fd_ < 0) return;
    alignment_ = AlignmentOf(direct_fd_);
    if (alignment_.offset == 0) close(std::exchange(direct_fd_, -1));
  });
  return direct_fd_;
}

File::Descriptors PosixFile::descriptors() const {
  Descriptors all;
  all.direct = DirectFd();
  all.cached = fd_;
  all.alignment = alignment_;
  return all;
}

absl::Status PosixFile::ReadLarge(int64_t& offset, absl::Span<std::byte>& out) const {
  const int64_t found = ReadCached(fd_, offset, out);
  out.remove_prefix(found);
  offset += found;
  const int direct = DirectFd();
  if (direct < 0) return absl::OkStatus();
  const auto address = reinterpret_cast<uintptr_t>(out.data());
  const bool is_aligned = offset % alignment_.offset == 0 && address % alignment_.memory == 0;
  return is_aligned ? ReadInPlace(direct, offset, out) : ReadThroughBlock(direct, offset, out);
}

absl::StatusOr<int64_t> PosixFile::ReadDirect(int direct, int64_t offset, absl::Span<std::byte> out) const {
  const ssize_t n = RetryInterrupted([&] { return pread(direct, out.data(), out.size(), offset); });
  // EINVAL is not an error: the kernel requires another alignment than it reported.
  if (n >= 0 || errno == EINVAL) return std::max<ssize_t>(n, 0);
  return ErrnoStatus(absl::StrCat("read ", out.size(), " bytes at ", offset, " of"), path_);
}

absl::Status PosixFile::ReadInPlace(int direct, int64_t& offset, absl::Span<std::byte>& out) const {
  size_t nbytes = out.size() / alignment_.offset * alignment_.offset;
  while (nbytes > 0) {
    FSDP_ASSIGN_OR_RETURN(const int64_t n, ReadDirect(direct, offset, out.first(nbytes)));
    out.remove_prefix(n);
    offset += n;
    nbytes -= n;
    if (n == 0 || n % alignment_.offset != 0) break;  // the end of the file, or an interrupted read
  }
  return absl::OkStatus();
}

absl::Status PosixFile::ReadThroughBlock(int direct, int64_t& offset, absl::Span<std::byte>& out) const {
  const AlignedBlock block = NewAlignedBlock(kBlockBytes);
  while (!out.empty()) {
    const int64_t before = offset % alignment_.offset;
    const int64_t wanted = std::min(before + static_cast<int64_t>(out.size()), kBlockBytes);
    const int64_t nbytes = (wanted + alignment_.offset - 1) / alignment_.offset * alignment_.offset;
    FSDP_ASSIGN_OR_RETURN(const int64_t n,
                          ReadDirect(direct, offset - before, {block.get(), static_cast<size_t>(nbytes)}));
    const int64_t got = std::min(n, wanted) - before;
    if (got <= 0) break;
    StreamingCopy(out.data(), block.get() + before, got);
    out.remove_prefix(got);
    offset += got;
    if (n < wanted) break;  // the end of the file, or an interrupted read
  }
  return absl::OkStatus();
}

absl::Status PosixFile::Read(int64_t offset, absl::Span<std::byte> out) const {
  if (out.size() >= kLargeBytes) FSDP_RETURN_IF_ERROR(ReadLarge(offset, out));
  const size_t done = TransferAll<std::byte>(offset, out, [this](int64_t at, absl::Span<std::byte> bytes) {
    return pread(fd_, bytes.data(), bytes.size(), at);
  });
  if (done == out.size()) return absl::OkStatus();
  const int64_t at = offset + static_cast<int64_t>(done);
  if (errno == 0) return absl::DataLossError(absl::StrCat(path_, " ends at byte ", at));
  return ErrnoStatus(absl::StrCat("read ", out.size() - done, " bytes at ", at, " of"), path_);
}

absl::Status PosixFile::Write(int64_t offset, absl::Span<const std::byte> bytes) {
  const size_t done = TransferAll<const std::byte>(offset, bytes, [this](int64_t at, absl::Span<const std::byte> left) {
    return pwrite(fd_, left.data(), left.size(), at);
  });
  if (done == bytes.size()) return absl::OkStatus();
  const int64_t at = offset + static_cast<int64_t>(done);
  if (errno == 0) return absl::DataLossError(absl::StrCat("cannot write at ", at, " of ", path_, ": no progress"));
  return ErrnoStatus(absl::StrCat("write ", bytes.size() - done, " bytes at ", at, " of"), path_);
}

absl::Status PosixFile::Reserve(int64_t nbytes) {
  if (nbytes == 0) return absl::OkStatus();
  if (RetryInterrupted([&] { return fallocate(fd_, 0, 0, nbytes); }) == 0) return absl::OkStatus();
  // Without fallocate the file is only sparse: a full disk then shows at the first write that needs the space.
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    if (RetryInterrupted([&] { return ftruncate(fd_, nbytes); }) == 0) return absl::OkStatus();
  }
  return ErrnoStatus(absl::StrCat("reserve ", nbytes, " bytes for"), path_);
}

absl::Status PosixFile::Sync() {
  return RetryInterrupted([&] { return fsync(fd_); }) == 0 ? absl::OkStatus() : ErrnoStatus("fsync", path_);
}

std::unique_ptr<WriteQueue> PosixFile::NewWriteQueue(int depth) {
  const auto plain = [this](int64_t offset, absl::Span<const std::byte> bytes) { return Write(offset, bytes); };
  if (DirectFd() < 0) return NewSynchronousWriteQueue(plain);
  return NewDirectWriteQueue(direct_fd_, alignment_, depth, path_, plain);
}

}  // namespace fsdp
