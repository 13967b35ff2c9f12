// SPDX-License-Identifier: Apache-2.0
//
// IsUnread: tells a failure of this machine from damage, for code that judges a checkpoint by the error of reading it.
// Too few descriptors, too little memory, a missing permission, a stale handle or a server that does not answer say
// nothing about the bytes, which another process may read and find right. EIO is damage: the medium has lost the bytes,
// and a repair makes them again.
#ifndef FSDP_CHECKPOINT_STORAGE_UNREAD_H_
#define FSDP_CHECKPOINT_STORAGE_UNREAD_H_

#include "absl/status/status.h"

namespace fsdp {

// True for an error after which the bytes are unknown. By the code, which ErrnoStatus derives from errno: EMFILE,
// ENFILE, ENOMEM, EACCES, EPERM, ESTALE, ETIMEDOUT and the like, and the limits of this program.
inline bool IsUnread(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status) ||
         absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_UNREAD_H_
