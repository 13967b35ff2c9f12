// SPDX-License-Identifier: Apache-2.0
//
// CheckRoom: asks a disk for room before long work fills it.
#ifndef FSDP_CHECKPOINT_STORAGE_DISK_ROOM_H_
#define FSDP_CHECKPOINT_STORAGE_DISK_ROOM_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

// OK when the disk of the directory of `path` has room for `nbytes` more bytes, or does not report its room: the write
// then fails by itself. kResourceExhausted otherwise: "PATH: WHAT take 10 bytes, but the disk has room for 9". Another
// program may take the room later.
absl::Status CheckRoom(const std::string& path, std::string_view what, int64_t nbytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_DISK_ROOM_H_
