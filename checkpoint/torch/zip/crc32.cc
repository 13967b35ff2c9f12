// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/torch/zip/crc32.h"

#include <isa-l/crc.h>
#include <zlib.h>

namespace fsdp {

// ISA-L's is three times as fast as zlib's, which alone can combine.
uint32_t Crc32(absl::Span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes) {
  return static_cast<uint32_t>(crc32_combine(first, second, second_bytes));
}

}  // namespace fsdp
