// SPDX-License-Identifier: Apache-2.0
//
// What the page cache has of a file. A direct read cannot tell, and asking by preadv2(RWF_NOWAIT) is no question: for
// what is missing the kernel starts read-ahead, and the direct read that follows takes the same bytes from the disk a
// second time (2.5 times the seconds, measured). So it is mincore that is asked, which reads nothing.
#ifndef FSDP_CHECKPOINT_STORAGE_CACHED_PAGES_H_
#define FSDP_CHECKPOINT_STORAGE_CACHED_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace fsdp {

// True when the first and the last page of the `nbytes` bytes at `offset` of the file `fd` are there, and so probably
// all of them. Of a file that is not ours to write the kernel does not say, and it is true.
bool SeemsCached(int fd, int64_t offset, int64_t nbytes);

// Copies what is there of the bytes at `offset`, from the first on, without waiting for the disk; returns how many it
// copied. Of bytes that seem to be cached.
int64_t CopyCached(int fd, int64_t offset, absl::Span<std::byte> out);

// The same where the bytes seem to be cached; else nothing.
int64_t ReadCached(int fd, int64_t offset, absl::Span<std::byte> out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_CACHED_PAGES_H_
