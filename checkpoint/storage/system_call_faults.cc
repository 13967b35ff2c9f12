// SPDX-License-Identifier: Apache-2.0
//
// One counter numbers all calls that can have the wanted fault, from any thread and wrapper, so a test can first count
// the calls of a run and then inject the fault into each of them in turn. With several threads the numbering depends on
// timing; the tests only need every number to occur somewhere, and nothing to break.
#include "fsdp/checkpoint/storage/system_call_faults.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>

#include "fsdp/base/check.h"

// By --wrap=NAME the linker sends calls of NAME to __wrap_NAME, below, and calls of __real_NAME to the library.
extern "C" {
int __real_open(const char* path, int flags, ...);
int __real_fallocate(int fd, int mode, off_t offset, off_t length);
ssize_t __real_pread(int fd, void* bytes, size_t nbytes, off_t offset);
ssize_t __real_preadv2(int fd, const iovec* parts, int count, off_t offset, int flags);
ssize_t __real_pwrite(int fd, const void* bytes, size_t nbytes, off_t offset);
int __real_io_uring_submit(io_uring* ring);
}

namespace fsdp {
namespace {

using Kind = SystemCallFaults::Kind;

std::atomic<bool> is_on = false;
std::atomic<Kind> wanted = Kind::kInterrupt;
std::atomic<int64_t> fault_at = 0;
std::atomic<int64_t> calls = 0;
std::atomic<int64_t> injected_faults = 0;

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

bool IsInterrupted() {
  if (!Strikes(Kind::kInterrupt)) return false;
  errno = EINTR;
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

// Changes the entries of `ring` that are not submitted yet; false when the submission itself must fail with EINTR.
bool Tamper(io_uring& ring) {
  for (unsigned i = ring.sq.sqe_head; i != ring.sq.sqe_tail; ++i) {
    io_uring_sqe& entry = ring.sq.sqes[i & *ring.sq.kring_mask];
    entry.len = static_cast<unsigned>(Cut(entry.fd, entry.len));
    if (!Strikes(Kind::kInterrupt)) continue;
    // Both ways of an interrupted submission, in turns.
    if (calls % 2 == 0) return false;
    entry.fd = BusyPipe(entry.opcode == IORING_OP_WRITE);
    entry.rw_flags = RWF_NOWAIT;  // without it the entry would wait for the other end
  }
  return true;
}

}  // namespace

void SystemCallFaults::Begin(Kind kind, int64_t at) {
  wanted = kind;
  fault_at = at;
  calls = 0;
  is_on = true;
}

int64_t SystemCallFaults::End() {
  is_on = false;
  return calls;
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
  return fsdp::IsInterrupted() ? -1 : __real_open(path, flags, mode);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t length) {
  return fsdp::IsInterrupted() ? -1 : __real_fallocate(fd, mode, offset, length);
}

// Nothing is synced: these tests check return values, and a real fsync would dominate their time.
int __wrap_fsync(int) { return fsdp::IsInterrupted() ? -1 : 0; }

ssize_t __wrap_pread(int fd, void* bytes, size_t nbytes, off_t offset) {
  return fsdp::IsInterrupted() ? -1 : __real_pread(fd, bytes, fsdp::Cut(fd, nbytes), offset);
}

ssize_t __wrap_preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  if (fsdp::IsInterrupted()) return -1;
  iovec first = parts[0];
  first.iov_len = fsdp::Cut(fd, first.iov_len);
  const bool is_cut = first.iov_len != parts[0].iov_len;
  return __real_preadv2(fd, is_cut ? &first : parts, is_cut ? 1 : count, offset, flags);
}

ssize_t __wrap_pwrite(int fd, const void* bytes, size_t nbytes, off_t offset) {
  return fsdp::IsInterrupted() ? -1 : __real_pwrite(fd, bytes, fsdp::Cut(fd, nbytes), offset);
}

int __wrap_io_uring_submit(io_uring* ring) { return fsdp::Tamper(*ring) ? __real_io_uring_submit(ring) : -EINTR; }

}  // extern "C"
