// SPDX-License-Identifier: Apache-2.0
//
// StreamingCopy: memcpy for bytes that are not read again soon. It writes with non-temporal stores, which bypass the
// caches: the destination's lines are not loaded before they are overwritten, which saves a third of the memory
// traffic, and the data that other code has in the caches stays there.
#ifndef FSDP_BASE_STREAMING_COPY_H_
#define FSDP_BASE_STREAMING_COPY_H_

#include <cstddef>

namespace fsdp {

// Copies `nbytes` bytes; source and destination must not overlap. A store fence at the end makes the bytes visible to a
// thread that synchronizes with this one afterwards, as for memcpy.
void StreamingCopy(void* to, const void* from, size_t nbytes);

}  // namespace fsdp

#endif  // FSDP_BASE_STREAMING_COPY_H_
