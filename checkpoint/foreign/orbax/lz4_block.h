// SPDX-License-Identifier: Apache-2.0
//
// A block of LZ4 as bytes in memory, of known size. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_LZ4_BLOCK_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_LZ4_BLOCK_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fsdp {

// Fills all of `out` with the contents of `block`. kDataLoss when it is damaged, or has fewer or more bytes.
absl::Status InflateLz4(std::string_view block, absl::Span<std::byte> out);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_LZ4_BLOCK_H_
