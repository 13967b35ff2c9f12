// SPDX-License-Identifier: Apache-2.0
//
// Crc32c: the CRC of Castagnoli's polynomial, which TensorBoard's event files, OCDBT's nodes and zarr's codec "crc32c"
// have. Pure.
#ifndef FSDP_BASE_CRC32C_H_
#define FSDP_BASE_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace fsdp {

// 0xe3069283 for "123456789".
uint32_t Crc32c(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_BASE_CRC32C_H_
