// SPDX-License-Identifier: Apache-2.0
//
// AlignedBlock: memory as direct I/O wants it, in huge pages, of which it has fewer to find. Its pages exist only once
// they are touched. Thread-safe.
//
// Fresh pages are dear, above all on a virtual machine that has given its free memory back to its host: with fresh
// buffers a save took 1.3 times what it took with those of the one before. So blocks of the common size that are freed
// are kept, at most kKeptBytes of them in a process, for whoever asks next.
#ifndef FSDP_CHECKPOINT_STORAGE_ALIGNED_BLOCK_H_
#define FSDP_CHECKPOINT_STORAGE_ALIGNED_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fsdp {

// The buffers of two threads, each with four writes or reads in flight and a block that it works on.
inline constexpr int64_t kKeptBytes = int64_t{44} << 20;

struct FreeAligned {
  int64_t nbytes = 0;  // of the memory
  void operator()(std::byte* memory) const;
};
using AlignedBlock = std::unique_ptr<std::byte[], FreeAligned>;

// At least `nbytes` bytes, aligned to a page, or to a huge page where there is room for one. Contents unspecified.
AlignedBlock NewAlignedBlock(int64_t nbytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_ALIGNED_BLOCK_H_
