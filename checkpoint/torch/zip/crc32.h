// SPDX-License-Identifier: Apache-2.0
//
// Crc32: the CRC of zip archives, computed in parts.
#ifndef FSDP_CHECKPOINT_TORCH_ZIP_CRC32_H_
#define FSDP_CHECKPOINT_TORCH_ZIP_CRC32_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace fsdp {

// Of no bytes: 0.
uint32_t Crc32(absl::Span<const std::byte> bytes);

// The CRC of two runs of bytes, one after the other, from the CRC of each and the length of the second.
uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_ZIP_CRC32_H_
