// SPDX-License-Identifier: Apache-2.0
//
// A memfd, not HDF5's own in-memory driver ("core"), which allocates the whole file, including payload, while a memfd
// is sparse. HDF5 gets its descriptor (checkpoint/hdf5/hdf5_descriptor.h).
#include "fsdp/checkpoint/storage/memory_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace fsdp {

absl::StatusOr<MemoryFile> MemoryFile::Create() {
  const int fd = memfd_create("fsdp-hdf5-layout", MFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  return MemoryFile(fd);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  // The destructor of `other` closes the old descriptor.
  std::swap(fd_, other.fd_);
  return *this;
}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<int64_t> MemoryFile::Size() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return absl::ErrnoToStatus(errno, "fstat of a memory file");
  return info.st_size;
}

absl::Status MemoryFile::Read(int64_t offset, absl::Span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = pread(fd_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "read of a memory file");
    if (n == 0) {  // beyond the end of the file
      std::memset(out.data(), 0, out.size());
      return absl::OkStatus();
    }
    out.remove_prefix(n);
    offset += n;
  }
  return absl::OkStatus();
}

}  // namespace fsdp
