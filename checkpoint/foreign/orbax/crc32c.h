// SPDX-License-Identifier: Apache-2.0
//
// Crc32c: the CRC of Castagnoli's polynomial, by which OCDBT's nodes and zarr's codec "crc32c" are checked. Portable;
// about a gigabyte per second, which is enough for metadata.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_CRC32C_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace fsdp {

// 0xe3069283 for "123456789".
uint32_t Crc32c(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_CRC32C_H_
