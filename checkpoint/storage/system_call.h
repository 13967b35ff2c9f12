// SPDX-License-Identifier: Apache-2.0
//
// Loops around system calls, which a signal may interrupt and which may transfer fewer bytes than requested; and a
// lock.
#ifndef FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_H_
#define FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_H_

#include <sys/file.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace fsdp {

// Repeats `call` while it fails with EINTR. Returns the result of the last call, with its errno.
template <typename Call>
auto RetryInterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Repeats `call`, a read or a write of `bytes` at `offset`, until all bytes are transferred. Returns their number: all,
// or fewer when a call failed (errno is set) or transferred nothing, such as at the end of a file (errno is 0).
template <typename Byte>
size_t TransferAll(int64_t offset, absl::Span<Byte> bytes,
                   absl::FunctionRef<ssize_t(int64_t offset, absl::Span<Byte> bytes)> call) {
  size_t done = 0;
  while (done < bytes.size()) {
    errno = 0;
    const ssize_t n = RetryInterrupted([&] { return call(offset + static_cast<int64_t>(done), bytes.subspan(done)); });
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

enum class FlockResult : uint8_t { kHeld, kTaken, kNoLocks, kError };

// Takes the exclusive lock of `fd` without waiting. kNoLocks: the file system has no locks (NFS answers EBADF for a
// descriptor that cannot write). kError, with errno: whether another process holds the lock is not known.
inline FlockResult TryFlock(int fd) {
  if (RetryInterrupted([&] { return flock(fd, LOCK_EX | LOCK_NB); }) == 0) return FlockResult::kHeld;
  if (errno == EWOULDBLOCK) return FlockResult::kTaken;
  const bool has_none = errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == EBADF;
  return has_none ? FlockResult::kNoLocks : FlockResult::kError;
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_H_
