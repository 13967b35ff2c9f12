// SPDX-License-Identifier: Apache-2.0
//
// StreamingCopy: memcpy of what nobody reads soon. It writes past the caches, so the destination is not read first, as
// a cache would, and what others have in the caches stays there.
#ifndef FSDP_BASE_STREAMING_COPY_H_
#define FSDP_BASE_STREAMING_COPY_H_

#include <cstddef>

namespace fsdp {

// Copies `nbytes` bytes; they must not overlap. Other threads that learn of it by a lock or an atomic see all of them.
void StreamingCopy(void* to, const void* from, size_t nbytes);

}  // namespace fsdp

#endif  // FSDP_BASE_STREAMING_COPY_H_
