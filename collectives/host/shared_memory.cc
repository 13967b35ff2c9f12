// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/host/shared_memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/collectives/host/available_memory.h"

// Since Linux 5.14; the headers of older C libraries lack it.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fsdp {

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
  // MAP_NORESERVE: the heap maps as much as the host has, and most of it is never backed.
  void* const data = mmap(nullptr, static_cast<size_t>(nbytes), protection, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", nbytes, " bytes of shared memory: ", std::strerror(errno)));
  }
  madvise(data, static_cast<size_t>(nbytes),
          MADV_HUGEPAGE);  // a hint: most hosts use small pages for shared memory anyway
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

// fallocate reports a lack of memory; without it, touching the pages would raise SIGBUS. But with overcommit it invokes
// the OOM killer rather than fail, so a request for more than AvailableMemoryBytes is refused first.
//
// EINTR, from a signal during a long allocation, is retried; every other errno, such as ENOSPC and ENOMEM, becomes
// kResourceExhausted.
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
    // fallocate may have backed a part before it failed.
    Decommit(offset, nbytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("wanted ", nbytes, " bytes of shared memory: ", std::strerror(error)));
  }
  // The pages exist already. This only enters them into the page table, so its failure on older kernels does no harm.
  madvise(data_ + offset, static_cast<size_t>(nbytes), MADV_POPULATE_WRITE);
  return absl::OkStatus();
}

void SharedMemory::Decommit(int64_t offset, int64_t nbytes) const {
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, nbytes);
}

}  // namespace fsdp
