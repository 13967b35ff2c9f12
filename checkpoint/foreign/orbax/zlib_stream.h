// SPDX-License-Identifier: Apache-2.0
//
// A stream of zlib or gzip as bytes in memory, of known size. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ZLIB_STREAM_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ZLIB_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fsdp {

// The largest number of bytes that deflate can produce per compressed byte.
inline constexpr int64_t kMaxZlibRatio = 1032;

// Fills all of `out` with the contents of `stream`, whose checksum is compared. kDataLoss when it is damaged, or has
// fewer or more bytes.
absl::Status InflateZlib(std::string_view stream, absl::Span<std::byte> out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ZLIB_STREAM_H_
