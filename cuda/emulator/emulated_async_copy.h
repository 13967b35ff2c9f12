// SPDX-License-Identifier: Apache-2.0
//
// The copies of cuda/async_copy.h, deferred as long as CUDA allows: a copy fills its destination with NaN when it
// starts, and only AwaitCopies executes it. So a kernel that reads too early, without the wait or its barrier, reads
// NaN, and so does one that starts a copy into memory that others still read.
#ifndef FSDP_CUDA_EMULATOR_EMULATED_ASYNC_COPY_H_
#define FSDP_CUDA_EMULATOR_EMULATED_ASYNC_COPY_H_

#include <cstdint>

#include "fsdp/cuda/emulator/block.h"

namespace fsdp {

// A misaligned side traps the process, as it would fault on a GPU.
template <int kBytes>
void CopyAsync(void* to, const void* from, bool exists) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if (reinterpret_cast<uintptr_t>(to) % kBytes != 0) __builtin_trap();
  if (reinterpret_cast<uintptr_t>(from) % kBytes != 0) __builtin_trap();
  EmulatedBlock::Current().StartCopy({to, exists ? from : nullptr, kBytes});
}

inline void CommitCopies() { EmulatedBlock::Current().CommitCopies(); }

template <int kPending>
void AwaitCopies() {
  EmulatedBlock::Current().AwaitCopies(kPending);
}

}  // namespace fsdp

#endif  // FSDP_CUDA_EMULATOR_EMULATED_ASYNC_COPY_H_
