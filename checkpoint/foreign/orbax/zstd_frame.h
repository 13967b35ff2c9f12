// SPDX-License-Identifier: Apache-2.0
//
// Zstandard frames as bytes in memory. The size that a frame claims is never trusted: the caller knows the size, or has
// a bound for it, before anything is allocated. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ZSTD_FRAME_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ZSTD_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

// The largest number of bytes that a frame can produce per compressed byte: a block of 128 KiB takes four bytes.
inline constexpr int64_t kMaxZstdRatio = 32 * 1024;

// Fills all of `out` with the contents of `frames`, one or more. kDataLoss when they are damaged, or have fewer or more
// bytes.
absl::Status InflateZstd(std::string_view frames, absl::Span<std::byte> out);

// The contents of `frames`, which the frame may state or not; kResourceExhausted when it is more than `most` bytes.
absl::StatusOr<std::string> InflateZstdUpTo(std::string_view frames, int64_t most);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ZSTD_FRAME_H_
