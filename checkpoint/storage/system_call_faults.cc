// SPDX-License-Identifier: Apache-2.0
//
// One counter numbers all calls that can have the wanted fault, from any thread and wrapper, so a test can first count
// the calls of a run and then inject the fault into each of them in turn. With several threads the numbering depends on
// timing; the tests only need every number to occur somewhere, and nothing to break.
#include "fsdp/checkpoint/storage/system_call_faults.h"

#include <dirent.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <string>
#include <string_view>

#include "fsdp/base/check.h"

// By --wrap=NAME the linker sends calls of NAME to __wrap_NAME, below, and calls of __real_NAME to the library.
extern "C" {
int __real_open(const char* path, int flags, ...);
int __real_fallocate(int fd, int mode, off_t offset, off_t length);
ssize_t __real_pread(int fd, void* bytes, size_t nbytes, off_t offset);
ssize_t __real_preadv2(int fd, const iovec* parts, int count, off_t offset, int flags);
ssize_t __real_pwrite(int fd, const void* bytes, size_t nbytes, off_t offset);
int __real_io_uring_submit(io_uring* ring);
int __real_fstat(int fd, struct stat* info);
int __real_stat(const char* path, struct stat* info);
int __real_lstat(const char* path, struct stat* info);
dirent* __real_readdir(DIR* directory);
int __real_mkdir(const char* path, mode_t mode);
int __real_rmdir(const char* path);
int __real_unlink(const char* path);
int __real_link(const char* from, const char* to);
int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags);
int __real_flock(int fd, int operation);
int __real_ftruncate(int fd, off_t nbytes);
}

namespace fsdp {
namespace {

using Kind = SystemCallFaults::Kind;

std::atomic<bool> is_on = false;
std::atomic<Kind> wanted = Kind::kInterrupt;
std::atomic<int64_t> fault_at = 0;
std::atomic<int64_t> calls = 0;
std::atomic<int64_t> injected_faults = 0;
std::atomic<int> fault_errno = EIO;
std::string hidden;     // empty: nothing
std::string forgotten;  // empty: nothing

// With kEvery: this thread's last call was interrupted, so the next one is its repetition and succeeds.
thread_local bool repeats = false;

// Counts a call that can have the fault `kind`; true when it must have it.
bool Strikes(Kind kind) {
  if (!is_on || wanted != kind) return false;
  const int64_t call = ++calls;
  const bool every = fault_at == SystemCallFaults::kEvery && !repeats;
  repeats = every && kind == Kind::kInterrupt;
  if (!every && call != fault_at) return false;
  ++injected_faults;
  return true;
}

// Counts a call that can fail; true, with errno, when it must.
bool Fails() {
  const Kind kind = wanted;
  if (!is_on || (kind != Kind::kFail && kind != Kind::kFailFrom)) return false;
  const int64_t call = ++calls;
  const int64_t at = fault_at;
  if (at == 0 || (kind == Kind::kFail ? call != at : call < at)) return false;
  ++injected_faults;
  errno = fault_errno;
  return true;
}

// Whether `fd` is a file that has a name: memory (memfd) is no medium that fails.
bool HasName(int fd) {
  struct stat info;
  return __real_fstat(fd, &info) == 0 && info.st_nlink > 0;
}

bool Fails(int fd) { return HasName(fd) && Fails(); }

// A call that can be interrupted.
bool IsInterrupted() {
  if (!Strikes(Kind::kInterrupt)) return false;
  errno = EINTR;
  return true;
}

bool HasPart(const std::string& path, const std::string& name) {
  return !name.empty() && ("/" + path + "/").find("/" + name + "/") != std::string::npos;
}

// A call that looks a path up, and can fail.
bool CannotFind(const char* path) {
  if (!HasPart(path, hidden) && !HasPart(path, forgotten)) return Fails();
  errno = HasPart(path, hidden) ? ENOENT : ESTALE;
  return true;
}

// The length of a shortened transfer of `nbytes`: half, in whole pages for direct I/O.
size_t Cut(int fd, size_t nbytes) {
  const size_t unit = (fcntl(fd, F_GETFL) & O_DIRECT) != 0 ? 4096 : 1;
  if (nbytes < 2 * unit || !Strikes(Kind::kCutShort)) return nbytes;
  return nbytes / 2 / unit * unit;
}

// The end of a pipe that is full, or of one that is empty: without waiting, writing or reading gives EAGAIN.
int BusyPipe(bool is_write) {
  static const std::array<int, 2> ends = [] {
    int full[2];
    int empty[2];
    Check(pipe2(full, O_NONBLOCK | O_CLOEXEC) == 0 && pipe2(empty, O_NONBLOCK | O_CLOEXEC) == 0, "no pipe for a test");
    const char bytes[4096] = {};
    while (write(full[1], bytes, sizeof(bytes)) > 0) continue;
    return std::array<int, 2>{empty[0], full[1]};
  }();
  return ends[is_write ? 1 : 0];
}

// The memory of this process, in which nothing is at address 0: reading or writing there gives EIO.
int BrokenFile() {
  static const int fd = __real_open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  Check(fd >= 0, "no /proc/self/mem for a test");
  return fd;
}

// Changes the entries of `ring` that are not submitted yet; false when the submission itself must fail with EINTR.
bool Tamper(io_uring& ring) {
  for (unsigned i = ring.sq.sqe_head; i != ring.sq.sqe_tail; ++i) {
    io_uring_sqe& entry = ring.sq.sqes[i & *ring.sq.kring_mask];
    entry.len = static_cast<unsigned>(Cut(entry.fd, entry.len));
    if (Fails(entry.fd)) {
      entry.fd = BrokenFile();
      entry.off = 0;
      continue;
    }
    if (!Strikes(Kind::kInterrupt)) continue;
    // Both ways of an interrupted submission, in turns.
    if (calls % 2 == 0) return false;
    entry.fd = BusyPipe(entry.opcode == IORING_OP_WRITE);
    entry.rw_flags = RWF_NOWAIT;  // without it the entry would wait for the other end
  }
  return true;
}

}  // namespace

void SystemCallFaults::Begin(Kind kind, int64_t at, int error) {
  wanted = kind;
  fault_errno = error;
  fault_at = at;
  calls = 0;
  is_on = true;
}

int64_t SystemCallFaults::End() {
  is_on = false;
  return calls;
}

void SystemCallFaults::Hide(const std::string& name) { hidden = name; }

void SystemCallFaults::Forget(const std::string& name) { forgotten = name; }

void SystemCallFaults::Show() {
  hidden.clear();
  forgotten.clear();
}

int64_t SystemCallFaults::injected() { return injected_faults; }

}  // namespace fsdp

extern "C" {

int __wrap_open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  return fsdp::CannotFind(path) || fsdp::IsInterrupted() ? -1 : __real_open(path, flags, mode);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t length) {
  return fsdp::Fails(fd) || fsdp::IsInterrupted() ? -1 : __real_fallocate(fd, mode, offset, length);
}

// Nothing is synced: these tests check return values, and a real fsync would dominate their time.
int __wrap_fsync(int fd) { return fsdp::Fails(fd) || fsdp::IsInterrupted() ? -1 : 0; }

ssize_t __wrap_pread(int fd, void* bytes, size_t nbytes, off_t offset) {
  return fsdp::Fails(fd) || fsdp::IsInterrupted() ? -1 : __real_pread(fd, bytes, fsdp::Cut(fd, nbytes), offset);
}

ssize_t __wrap_preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  if (fsdp::Fails(fd) || fsdp::IsInterrupted()) return -1;
  iovec first = parts[0];
  first.iov_len = fsdp::Cut(fd, first.iov_len);
  const bool is_cut = first.iov_len != parts[0].iov_len;
  return __real_preadv2(fd, is_cut ? &first : parts, is_cut ? 1 : count, offset, flags);
}

ssize_t __wrap_pwrite(int fd, const void* bytes, size_t nbytes, off_t offset) {
  return fsdp::Fails(fd) || fsdp::IsInterrupted() ? -1 : __real_pwrite(fd, bytes, fsdp::Cut(fd, nbytes), offset);
}

int __wrap_fstat(int fd, struct stat* info) { return fsdp::Fails(fd) ? -1 : __real_fstat(fd, info); }

int __wrap_stat(const char* path, struct stat* info) { return fsdp::CannotFind(path) ? -1 : __real_stat(path, info); }

int __wrap_lstat(const char* path, struct stat* info) { return fsdp::CannotFind(path) ? -1 : __real_lstat(path, info); }

dirent* __wrap_readdir(DIR* directory) {
  if (fsdp::Fails()) return nullptr;
  dirent* entry = __real_readdir(directory);
  while (entry != nullptr && fsdp::hidden == entry->d_name) entry = __real_readdir(directory);
  return entry;
}

int __wrap_mkdir(const char* path, mode_t mode) { return fsdp::Fails() ? -1 : __real_mkdir(path, mode); }

int __wrap_rmdir(const char* path) { return fsdp::Fails() ? -1 : __real_rmdir(path); }

int __wrap_unlink(const char* path) { return fsdp::Fails() ? -1 : __real_unlink(path); }

int __wrap_link(const char* from, const char* to) { return fsdp::Fails() ? -1 : __real_link(from, to); }

int __wrap_rename(const char* from, const char* to) { return fsdp::Fails() ? -1 : __real_rename(from, to); }

int __wrap_renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  if (flags != 0 && (!fsdp::hidden.empty() || !fsdp::forgotten.empty())) {
    errno = EINVAL;
    return -1;
  }
  return fsdp::Fails() ? -1 : __real_renameat2(from_fd, from, to_fd, to, flags);
}

int __wrap_flock(int fd, int operation) {
  return fsdp::Fails(fd) || fsdp::IsInterrupted() ? -1 : __real_flock(fd, operation);
}

int __wrap_ftruncate(int fd, off_t nbytes) { return fsdp::Fails(fd) ? -1 : __real_ftruncate(fd, nbytes); }

int __wrap_io_uring_submit(io_uring* ring) { return fsdp::Tamper(*ring) ? __real_io_uring_submit(ring) : -EINTR; }

}  // extern "C"
