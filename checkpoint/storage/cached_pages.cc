// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/storage/cached_pages.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>

#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/system_call.h"

namespace fsdp {
namespace {

// The mapping is never touched, so it causes no page fault, and no SIGBUS if the file shrinks meanwhile.
bool HasPage(int fd, int64_t offset) {
  void* const page = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd, offset / kPageBytes * kPageBytes);
  if (page == MAP_FAILED) return false;
  unsigned char present = 0;
  const bool is_known = mincore(page, kPageBytes, &present) == 0;
  munmap(page, kPageBytes);
  return is_known && (present & 1) != 0;
}

}  // namespace

bool SeemsCached(int fd, int64_t offset, int64_t nbytes) {
  // Two probes instead of a bit for each page: large ranges are usually cached as a whole or not at all, and CopyCached
  // stops at a hole.
  return nbytes > 0 && HasPage(fd, offset) && HasPage(fd, offset + nbytes - 1);
}

int64_t CopyCached(int fd, int64_t offset, absl::Span<std::byte> out) {
  iovec part = {out.data(), out.size()};
  return std::max<ssize_t>(RetryInterrupted([&] { return preadv2(fd, &part, 1, offset, RWF_NOWAIT); }), 0);
}

int64_t ReadCached(int fd, int64_t offset, absl::Span<std::byte> out) {
  return SeemsCached(fd, offset, static_cast<int64_t>(out.size())) ? CopyCached(fd, offset, out) : 0;
}

}  // namespace fsdp
