// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

// Of Linux 5.14; older C libraries do not have it.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fsdp {
namespace {

// The number in a file such as memory.max; -1 for "max" or no file.
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = -1;
  return file >> number ? number : -1;
}

// "0::/user.slice/job" is the line of cgroup v2.
std::string CgroupDirectory() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) {
      return absl::StrCat("/sys/fs/cgroup", line.substr(3));
    }
  }
  return "/sys/fs/cgroup";
}

int64_t CgroupAvailableBytes() {
  const std::string directory = CgroupDirectory();
  const int64_t limit = NumberIn(absl::StrCat(directory, "/memory.max"));
  const int64_t used = NumberIn(absl::StrCat(directory, "/memory.current"));
  return limit < 0 || used < 0 ? std::numeric_limits<int64_t>::max() : std::max<int64_t>(limit - used, 0);
}

int64_t HostAvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  int64_t available = 0;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == "MemAvailable:" || key == "SwapFree:") {
      available += kib * 1024;
    }
  }
  return available;
}

}  // namespace

int64_t AvailableMemoryBytes() { return std::min(HostAvailableBytes(), CgroupAvailableBytes()); }

absl::StatusOr<SharedMemory> SharedMemory::Create(const std::string& name, int64_t nbytes) {
  FileDescriptor fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd.ok() || ftruncate(fd.get(), nbytes) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make shared memory of ", nbytes, " bytes: ", std::strerror(errno)));
  }
  return Map(std::move(fd), nbytes, PROT_READ | PROT_WRITE);
}

absl::StatusOr<SharedMemory> SharedMemory::OpenReadOnly(int pid, int fd, int64_t nbytes) {
  return Open(pid, fd, nbytes, PROT_READ);
}

absl::StatusOr<SharedMemory> SharedMemory::OpenReadWrite(int pid, int fd, int64_t nbytes) {
  return Open(pid, fd, nbytes, PROT_READ | PROT_WRITE);
}

absl::StatusOr<SharedMemory> SharedMemory::Open(int pid, int fd, int64_t nbytes, int protection) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  FileDescriptor file(open(path.c_str(), ((protection & PROT_WRITE) != 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  struct stat status = {};
  if (!file.ok() || fstat(file.get(), &status) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot open shared memory ", path, ": ", std::strerror(errno)));
  }
  if (status.st_size != nbytes) {
    return absl::UnavailableError(
        absl::StrCat("shared memory ", path, " has ", status.st_size, " bytes, wanted ", nbytes));
  }
  return Map(std::move(file), nbytes, protection);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(FileDescriptor fd, int64_t nbytes, int protection) {
  void* const data = mmap(nullptr, static_cast<size_t>(nbytes), protection, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", nbytes, " bytes of shared memory: ", std::strerror(errno)));
  }
  madvise(data, static_cast<size_t>(nbytes), MADV_HUGEPAGE);  // only a wish: most hosts give shared memory small pages
  return SharedMemory(std::move(fd), static_cast<std::byte*>(data), nbytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), nbytes_(other.nbytes_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    munmap(data_, static_cast<size_t>(nbytes_));
  }
}

// fallocate says when there is no memory, where a touch would be a SIGBUS. But where memory is overcommitted it would
// rather call the OOM killer than fail, so what is plainly too much is refused before.
absl::Status SharedMemory::Commit(int64_t offset, int64_t nbytes) const {
  if (nbytes == 0) {
    return absl::OkStatus();
  }
  if (const int64_t available = AvailableMemoryBytes(); nbytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("wanted ", nbytes, " bytes of shared memory, ", available, " are available"));
  }
  int error = 0;
  do {
    error = fallocate(fd_.get(), 0, offset, nbytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) {
    Decommit(offset, nbytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("wanted ", nbytes, " bytes of shared memory: ", std::strerror(error)));
  }
  // The pages exist; this only enters them into the page table, so a kernel without it is no error.
  madvise(data_ + offset, static_cast<size_t>(nbytes), MADV_POPULATE_WRITE);
  return absl::OkStatus();
}

void SharedMemory::Decommit(int64_t offset, int64_t nbytes) const {
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, nbytes);
}

}  // namespace fsdp
