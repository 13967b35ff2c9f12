// SPDX-License-Identifier: Apache-2.0
//
// System calls as they are: a signal may interrupt them, and they may do less than they were asked to.
#ifndef FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_H_
#define FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_H_

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace fsdp {

// Repeats `call` while a signal interrupts it. Its result is that of the call; errno is set.
template <typename Call>
auto RetryInterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Repeats `call`, a read or a write of some bytes at some offset, until all `bytes` are through. Returns how many are:
// all, or fewer when the call failed (errno is set) or came to an end (errno is 0).
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

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_SYSTEM_CALL_H_
